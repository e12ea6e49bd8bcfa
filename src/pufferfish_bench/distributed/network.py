"""The cost of communication: time collectives, fit a latency and a bandwidth to the times, and predict times from them.

A collective of n ranks sends its messages one after another: `messages * latency + bytes_on_the_wire / bandwidth`, per rank.
The formulas need no torch, so that reports can use them.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pufferfish_bench.base.errors import InputError

if TYPE_CHECKING:
    from pufferfish_bench.distributed.world import World

SIZES = tuple(8 * 4**k for k in range(11))  # 8 bytes to 8 MB
LONGEST = 1.0  # seconds: the largest sizes are skipped if a call would take longer
REPETITIONS = range(3, 21)  # of each size, as many as fit into BUDGET
BUDGET = 0.3  # seconds per size

Collective = Callable[[float, int, float, float], float]


def ring_allreduce(bytes: float, n: int, latency: float, bandwidth: float) -> float:
    """Seconds for a ring allreduce of `bytes` over n ranks: each sends 2(n-1) chunks of bytes/n."""
    return 2 * (n - 1) * latency + 2 * (n - 1) / n * bytes / bandwidth


def allgather(bytes: float, n: int, latency: float, bandwidth: float) -> float:
    """Seconds for an allgather over n ranks, each of which contributes `bytes`."""
    return (n - 1) * latency + (n - 1) * bytes / bandwidth


def fit(collective: Collective, points: Sequence[Sequence[float]], n: int) -> tuple[float, float]:
    """The latency (s) and bandwidth (bytes/s) with which `collective` fits the points (bytes, seconds) best.

    The candidates pass exactly through two of the points. The best has the smallest sum of relative errors,
    |log(predicted / seconds)|: small sizes determine the latency, and a single outlier has no influence. Neither value is
    negative: a latency too small to measure is 0, a bandwidth too large to measure is infinite.
    """
    if n < 2:
        raise ValueError(f"fitting a network needs at least 2 ranks, got {n}: a single rank sends nothing")
    # linear in (latency, 1 / bandwidth): messages * latency + wire / bandwidth = seconds
    rows = [(collective(size, n, 1.0, math.inf), collective(size, n, 0.0, 1.0), seconds) for size, seconds in points]
    candidates = [pair for messages, wire, seconds in rows for pair in ((seconds / messages, 0.0), (0.0, seconds / wire))]
    for (m1, w1, s1), (m2, w2, s2) in itertools.combinations(rows, 2):
        determinant = m1 * w2 - m2 * w1
        if determinant:
            candidates.append(((s1 * w2 - s2 * w1) / determinant, (m1 * s2 - m2 * s1) / determinant))

    def error(candidate: tuple[float, float]) -> float:
        latency, inverse = candidate
        return sum(abs(math.log((messages * latency + wire * inverse) / seconds)) for messages, wire, seconds in rows)

    latency, inverse = min((candidate for candidate in candidates if min(candidate) >= 0), key=error)
    return latency, 1 / inverse if inverse > 0 else math.inf


def measure(world: World, sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Latency and bandwidth of allreduce and allgather between these ranks, with the measured times, as plain data."""
    if world.size < 2:
        raise InputError(
            "measuring the network needs at least 2 workers, got 1; start several with torchrun, or use measure_network=false"
        )
    collectives = {"allreduce": (world.allreduce, ring_allreduce), "allgather": (world.allgather, allgather)}
    figures: dict[str, Any] = {"ranks": world.size}
    for name, (call, model) in collectives.items():
        points = time_sizes(world, call, sizes)
        latency, bandwidth = fit(model, points, world.size)
        figures[name] = {"latency": latency, "bandwidth": bandwidth, "points": points}
    return figures


def time_sizes(world: World, call: Callable[[Any], Any], sizes: Sequence[int]) -> list[list[float]]:
    """[bytes, seconds] of a collective for each size that does not take too long: the median time of the slowest rank."""
    import torch

    points: list[list[float]] = []
    for size in sizes:
        if points and extrapolate(points, size) > LONGEST:
            break
        tensor = torch.zeros(max(1, size // 4), dtype=torch.float32, device=world.device)
        first = world.broadcast_object(time_call(world, call, tensor))  # warm-up; the same on all ranks, so all agree
        repetitions = min(max(int(BUDGET / first), REPETITIONS[0]), REPETITIONS[-1])
        ours = [time_call(world, call, tensor) for _ in range(repetitions)]
        seconds = statistics.median(map(max, zip(*world.gather(ours), strict=True)))
        points.append([tensor.nbytes, seconds])
    return points


def extrapolate(points: Sequence[Sequence[float]], size: float) -> float:
    """Estimated seconds for a larger size: linear in the size, through the smallest and the largest measured point."""
    (_, smallest), (largest, seconds) = points[0], points[-1]
    return smallest + (seconds - smallest) * size / largest


def time_call(world: World, call: Callable[[Any], Any], tensor: Any) -> float:
    """Seconds from when all ranks are ready until this rank is done."""
    world.synchronise()
    world.barrier()
    start = time.perf_counter()
    call(tensor)
    world.synchronise()
    return time.perf_counter() - start
