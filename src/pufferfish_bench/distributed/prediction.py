"""Predicts the time of a step on another network with more or fewer workers: a latency-bandwidth model, as pure functions.

A step is computation, encoding, the collectives one after the other, and decoding; nothing overlaps. Computation and encoding
are as measured, because the batch size per worker is constant. Waiting for the slowest rank is also as measured, if there is
more than one worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import network
from pufferfish_bench.records.measured import Link, Measured

COLLECTIVES = {"allreduce": network.ring_allreduce, "allgather": network.allgather}


def uniform(link: Link) -> dict[str, Link]:
    """The same link for every collective."""
    return dict.fromkeys(COLLECTIVES, link)


def local_seconds(run: Measured, workers: int) -> float:
    """The time of a step without its collectives."""
    gathers = any(kind == "allgather" for kind, _ in run.messages)
    decode = run.seconds["decode"] * (workers / run.workers if gathers else 1)  # the gathered messages of all workers are decoded
    wait = run.seconds["wait"] if workers > 1 else 0.0
    return run.part("computation") + run.seconds["encode"] + decode + wait


def exchange_seconds(run: Measured, workers: int, links: Mapping[str, Link]) -> float:
    """The time of the collectives of a step."""
    return sum(COLLECTIVES[kind](size, workers, links[kind].latency, links[kind].bandwidth) for kind, size in run.messages)


def step_seconds(run: Measured, workers: int, links: Mapping[str, Link]) -> float:
    return local_seconds(run, workers) + exchange_seconds(run, workers, links)


def epoch_steps(run: Measured, workers: int, samples: int) -> int:
    """The steps of an epoch with this many samples, at least one; the last batch may be smaller."""
    return max(1, -(-samples // (workers * run.batch_size)))


def epoch_seconds(run: Measured, workers: int, links: Mapping[str, Link], samples: int) -> float:
    """The time of an epoch with this many samples: twice the workers, half the steps."""
    return step_seconds(run, workers, links) * epoch_steps(run, workers, samples)


def error(run: Measured, source: Measured) -> tuple[float, float]:
    """Predicted step time of a run, from the computation of `source` and the run's own network fit; and the relative error."""
    crowding = 1.0
    if run.threads_a_core and source.threads_a_core:  # the lab's hosts share the cores of one machine
        crowding = max(1.0, run.threads_a_core) / max(1.0, source.threads_a_core)
    predicted = crowding * local_seconds(source, run.workers) + exchange_seconds(source, run.workers, run.links)
    return predicted, predicted / run.step_seconds - 1


@dataclass(frozen=True)
class BreakEven:
    """The bandwidth below which `slow_network` is the faster of two methods, and above which `fast_network` is."""

    bandwidth: float | None  # bytes per second; None: one method is faster at every bandwidth
    slow_network: Measured
    fast_network: Measured


def break_even(one: Measured, other: Measured, workers: int, latency: float) -> BreakEven:
    """Solved exactly: the time per sample is affine in 1 / bandwidth. If two are always equal, the first counts as faster."""
    fixed, variable = zip(affine(one, workers, latency), affine(other, workers, latency), strict=True)
    fast_network = one if (fixed[0], variable[0]) <= (fixed[1], variable[1]) else other
    slow_network = one if (variable[0], fixed[0]) <= (variable[1], fixed[1]) else other
    if fast_network is slow_network:
        return BreakEven(None, slow_network, fast_network)
    return BreakEven((variable[0] - variable[1]) / (fixed[1] - fixed[0]), slow_network, fast_network)


def affine(run: Measured, workers: int, latency: float) -> tuple[float, float]:
    """(a, b) such that a sample takes a + b / bandwidth seconds."""
    fixed = step_seconds(run, workers, uniform(Link(latency, inf)))
    variable = exchange_seconds(run, workers, uniform(Link(0.0, 1.0)))
    return fixed / run.batch_size, variable / run.batch_size


def break_evens(runs: Sequence[Measured], workers: int, latency: float) -> list[BreakEven]:
    """Every point at which the faster of two methods changes, in ascending order of bandwidth."""
    points = [break_even(one, other, workers, latency) for one, other in combinations(runs, 2)]
    return sorted((point for point in points if point.bandwidth is not None), key=lambda point: point.bandwidth)


def handovers(runs: Sequence[Measured], workers: int, latency: float) -> list[BreakEven]:
    """The break-even points at which the fastest of all methods changes."""

    def seconds(run: Measured, bandwidth: float) -> float:
        fixed, variable = affine(run, workers, latency)
        return fixed + variable / bandwidth

    return [
        point
        for point in break_evens(runs, workers, latency)
        if seconds(point.slow_network, point.bandwidth) <= min(seconds(run, point.bandwidth) for run in runs) * (1 + 1e-9)
    ]


def check_predictable(run: Measured) -> None:
    """Refuse a run that the model does not apply to."""
    if run.messages is None:
        raise InputError(f"the record in {run.directory} does not list the messages of a step; run it again with this version")
    if run.overlapped:
        raise InputError(
            f"{run.directory} was measured with a reducer that overlaps communication and computation. It cannot be predicted; "
            "use a run with another reducer, such as reducer=allreduce"
        )
    if run.workers == 1 and not run.messages:
        raise InputError(f"{run.directory} was measured with one worker, which sends nothing; use a run with two or more workers")
    unknown = sorted({kind for kind, _ in run.messages} - set(COLLECTIVES))
    if unknown:
        raise InputError(f"{run.directory} uses {', '.join(unknown)}; only {' and '.join(COLLECTIVES)} can be predicted")
