"""What a method's step would take on another network with other workers: a latency-bandwidth model, as pure functions.

A step is computation, encoding, the collectives one after the other, and decoding; nothing overlaps. Computation and encoding
stay as measured, for the batch of a worker stays. So does waiting for the slowest rank, where there is somebody to wait for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from pufferfish_bench import network
from pufferfish_bench.errors import InputError
from pufferfish_bench.report.measured import Link, Measured

COLLECTIVES = {"allreduce": network.ring_allreduce, "allgather": network.allgather}


def uniform(link: Link) -> dict[str, Link]:
    """The same link for every collective."""
    return dict.fromkeys(COLLECTIVES, link)


def local_seconds(run: Measured, workers: int) -> float:
    """What a step takes besides its collectives."""
    gathers = any(kind == "allgather" for kind, _ in run.messages)
    decode = run.seconds["decode"] * (workers / run.workers if gathers else 1)  # a gathered message of each worker is decoded
    wait = run.seconds["wait"] if workers > 1 else 0.0
    return run.part("computation") + run.seconds["encode"] + decode + wait


def exchange_seconds(run: Measured, workers: int, links: Mapping[str, Link]) -> float:
    """What the collectives of a step take."""
    return sum(COLLECTIVES[kind](size, workers, links[kind].latency, links[kind].bandwidth) for kind, size in run.messages)


def step_seconds(run: Measured, workers: int, links: Mapping[str, Link]) -> float:
    return local_seconds(run, workers) + exchange_seconds(run, workers, links)


def epoch_steps(run: Measured, workers: int, samples: int) -> int:
    """The steps of an epoch over a fixed number of samples: whole ones, at least one; the last may be less than full."""
    return max(1, -(-samples // (workers * run.batch_size)))


def epoch_seconds(run: Measured, workers: int, links: Mapping[str, Link], samples: int) -> float:
    """An epoch over a fixed number of samples: twice the workers, half the steps, as long as there is more than one."""
    return step_seconds(run, workers, links) * epoch_steps(run, workers, samples)


def error(run: Measured, source: Measured) -> tuple[float, float]:
    """A measured run's step, predicted from the computation of `source` and the run's own micro-benchmark; and by how much of
    the measured time that is wrong."""
    crowding = 1.0
    if run.threads_a_core and source.threads_a_core:  # the lab's hosts compute in turns when there are too few cores for them
        crowding = max(1.0, run.threads_a_core) / max(1.0, source.threads_a_core)
    predicted = crowding * local_seconds(source, run.workers) + exchange_seconds(source, run.workers, run.links)
    return predicted, predicted / run.step_seconds - 1


@dataclass(frozen=True)
class BreakEven:
    """Where the faster of two methods changes: `slow_network` is faster below the bandwidth, `fast_network` above it."""

    bandwidth: float | None  # bytes a second; None: the same one is faster at any bandwidth
    slow_network: Measured
    fast_network: Measured


def break_even(one: Measured, other: Measured, workers: int, latency: float) -> BreakEven:
    """Solved exactly: the time for a sample is affine in 1 / bandwidth. Of two that never differ, the first counts as faster."""
    fixed, variable = zip(affine(one, workers, latency), affine(other, workers, latency), strict=True)
    fast_network = one if (fixed[0], variable[0]) <= (fixed[1], variable[1]) else other
    slow_network = one if (variable[0], fixed[0]) <= (variable[1], fixed[1]) else other
    if fast_network is slow_network:
        return BreakEven(None, slow_network, fast_network)
    return BreakEven((variable[0] - variable[1]) / (fixed[1] - fixed[0]), slow_network, fast_network)


def affine(run: Measured, workers: int, latency: float) -> tuple[float, float]:
    """(a, b) such that a sample of the batch takes a + b / bandwidth seconds."""
    fixed = step_seconds(run, workers, uniform(Link(latency, inf)))
    variable = exchange_seconds(run, workers, uniform(Link(0.0, 1.0)))
    return fixed / run.batch_size, variable / run.batch_size


def break_evens(runs: Sequence[Measured], workers: int, latency: float) -> list[BreakEven]:
    """Every point at which two methods change places, by rising bandwidth."""
    points = [break_even(one, other, workers, latency) for one, other in combinations(runs, 2)]
    return sorted((point for point in points if point.bandwidth is not None), key=lambda point: point.bandwidth)


def handovers(runs: Sequence[Measured], workers: int, latency: float) -> list[BreakEven]:
    """Those of the break-even points at which the fastest of all methods changes."""

    def seconds(run: Measured, bandwidth: float) -> float:
        fixed, variable = affine(run, workers, latency)
        return fixed + variable / bandwidth

    return [
        point
        for point in break_evens(runs, workers, latency)
        if seconds(point.slow_network, point.bandwidth) <= min(seconds(run, point.bandwidth) for run in runs) * (1 + 1e-9)
    ]


def check_predictable(run: Measured) -> None:
    """Refuse a run whose record does not say what its steps send."""
    if run.messages is None:
        raise InputError(f"the record of {run.directory} does not say what a step sends (messages): measure it anew")
    if run.overlapped:
        raise InputError(f"{run.directory} was measured with DDP, which sends while it computes: give a run of the flat engine")
    if run.workers == 1 and not run.messages:
        raise InputError(f"{run.directory} was measured with one worker, who sends nothing: give a run with two or more")
    unknown = sorted({kind for kind, _ in run.messages} - set(COLLECTIVES))
    if unknown:
        raise InputError(f"{run.directory} uses {', '.join(unknown)}; only {' and '.join(COLLECTIVES)} can be predicted")
