"""When to end the warm-up: pure functions of the recorded epochs, so that a record shows when each would have fired.

`seen` has a row for every epoch so far; `history` has its metric, where lower is better.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pufferfish_bench.base.ranges import Count, Natural, NonNegative, Share

Rows = Sequence[Mapping[str, Any]]
Trigger = Callable[[Rows, Sequence[float]], bool]


def fixed_epoch(seen: Rows, history: Sequence[float], *, epoch: Natural) -> bool:
    """After so many epochs."""
    return len(seen) >= epoch


def stable_rank_settled(seen: Rows, history: Sequence[float], *, tolerance: NonNegative, patience: Count) -> bool:
    """When no layer's stable rank has changed by more than `tolerance` ranks in any of the last `patience` epochs."""
    changes = [row.get("stable_rank_change") for row in seen[-patience:]]
    return len(changes) == patience > 0 and all(change is not None and change <= tolerance for change in changes)


def masks_settled(seen: Rows, history: Sequence[float], *, distance: Share) -> bool:
    """When the newest channel mask is nearer than `distance` to all that it is compared with, as in EB Train."""
    last = seen[-1].get("mask_distance") if seen else None
    return last is not None and last < distance


def plateau(seen: Rows, history: Sequence[float], *, patience: Count, improvement: NonNegative) -> bool:
    """When the best of the last `patience` epochs is not better by `improvement` of it than the best before."""
    before, lately = history[:-patience], history[-patience:]
    return bool(before) and min(lately) > min(before) - improvement * abs(min(before))


def first_epoch(trigger: Trigger, rows: Rows, history: Sequence[float]) -> int | None:
    """After how many epochs of a record a trigger would have fired; None if it never would."""
    for count in range(1, len(rows) + 1):
        if trigger(rows[:count], history[:count]):
            return count
    return None
