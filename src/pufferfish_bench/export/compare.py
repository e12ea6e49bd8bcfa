"""Compares the outputs of two forms of a model, and times them in turns."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pufferfish_bench.bench import interleaved
from pufferfish_bench.training.memory import keep_freed_memory

BATCHES = (1, 32)
BUDGET = 5.0  # seconds of timing per batch size, unless that gives fewer than FEWEST rounds
FEWEST, MOST = 5, 50  # rounds
Model = Callable[..., Any]


def outputs(model: Model, batch: Sequence[Any]) -> list[Tensor]:
    """All floating-point tensors that a model returns."""
    with torch.no_grad():
        found = pytree.tree_leaves(model(*batch))
    return [value for value in found if isinstance(value, Tensor) and value.is_floating_point()]


def largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest absolute difference between outputs; NaN if there are NaNs, infinite if their number or shapes differ."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return float("inf")
    return float(torch.stack([torch.zeros(()), *((a - b).abs().max().float() for a, b in zip(one, other, strict=True))]).max())


def largest(values: Sequence[Tensor]) -> float:
    """The largest absolute value of some outputs."""
    return max((float(value.abs().max()) for value in values), default=0.0)


@dataclass(frozen=True)
class Latency:
    """The time of a forward pass of each model, over rounds in which they took turns."""

    seconds: Mapping[str, float]  # medians
    ratio: float | None  # of the first model to the last: the median over rounds; None if there is only one
    rounds: int


def latency(models: Mapping[str, Model], batch: Sequence[Any]) -> Latency:
    """Time a forward pass of each model, in turns."""

    def forward(model: Model) -> Callable[[], Any]:
        return lambda: model(*batch)

    keep_freed_memory()  # as in training; the time of a large batch would depend on the allocator
    with torch.no_grad():
        work = {name: forward(model) for name, model in models.items()}
        start = time.perf_counter()
        for call in work.values():
            call()
        rounds = max(FEWEST, min(MOST, int(BUDGET / (time.perf_counter() - start))))
        taken = interleaved.seconds(work, rounds=rounds)
    times = list(taken.values())
    ratio = interleaved.ratio(times[0], times[-1]) if len(times) > 1 else None
    return Latency({name: statistics.median(seconds) for name, seconds in taken.items()}, ratio, rounds)
