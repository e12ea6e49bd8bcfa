"""The gap between two nets against the training budget: scaled settings, and the trend of the gap. Pure functions.

The statistics are fixed before the runs. The gaps of all seeds are regressed on the logarithm of the budget, with an intercept
for each seed, because the runs of a seed share their initial weights. The 95 % interval of the slope decides what is said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.statistics import Differences

CLOSING, FLAT, WIDENING, NOT_ENOUGH = "closing", "flat", "widening", "not enough to say"
FEWEST_BUDGETS, FEWEST_SEEDS = 3, 2
ROUNDING = 1e-12  # residuals below this fraction of the gaps are rounding errors: they say nothing about the spread

Gaps = Mapping[int, float]  # by seed


def scaled(settings: Mapping[str, Any], budget: float) -> tuple[str, ...]:
    """Overrides for a run with `budget` times the epochs of these settings. Warm-up and milestones keep their shares of the run.

    Epochs are rounded. A recipe with a warm-up keeps at least one epoch of it and one epoch after it. There are no overrides for
    a budget of 1: it is the same run as without a budget.
    """
    recipe, warmup = settings["epochs"], settings["warmup_epochs"]
    epochs = max(rounded(budget * recipe), 2 if warmup else 1)
    if budget == 1 or epochs == recipe:
        return ()
    words = [f"epochs={epochs}"]
    if warmup:
        words.append(f"warmup_epochs={min(max(1, rounded(warmup * epochs / recipe)), epochs - 1)}")
    if milestones := settings["schedule"].get("milestones"):
        words.append(f"schedule.milestones=[{','.join(f'{milestone * epochs / recipe:.6g}' for milestone in milestones)}]")
    return tuple(words)


def rounded(value: float) -> int:
    """To the nearest integer; a half is rounded up."""
    return math.floor(value + 0.5)


@dataclass(frozen=True)
class Pair:
    """Two lines of a table with `over`, and the keys of the paper's numbers for them."""

    net: str
    vanilla: str
    pufferfish: str
    paper: tuple[str, str]


@dataclass(frozen=True)
class GapSettings:
    """What a table with `picture: gaps` compares."""

    quantity: str
    flat: float  # a slope that is within this, per doubling of the budget, is flat
    paper_images: str  # key of the number of training images of the paper's data set
    pairs: tuple[Pair, ...]

    @classmethod
    def parse(cls, table: str, own: Mapping[str, Any], lines: Sequence[str | None]) -> "GapSettings":
        missing = [key for key in ("quantity", "flat", "paper_images", "nets") if key not in own]
        if missing:
            raise InputError(f"{table}: picture: gaps needs `gaps:` with {', '.join(missing)}")
        pairs = tuple(
            Pair(net, pair["vanilla"], pair["pufferfish"], (pair["paper"]["vanilla"], pair["paper"]["pufferfish"]))
            for net, pair in own["nets"].items()
        )
        for line in (line for pair in pairs for line in (pair.vanilla, pair.pufferfish)):
            if line not in lines:
                raise InputError(
                    f"{table}: gaps: there is no line {line} with a budget; there are {', '.join(filter(None, lines))}"
                )
        return cls(own["quantity"], float(own["flat"]), own["paper_images"], pairs)


@dataclass(frozen=True)
class Trend:
    """How the gap changes when the budget doubles."""

    verdict: str
    budgets: int
    seeds: int
    slope: float | None = None
    interval: tuple[float, float] | None = None  # 95 %, of the slope

    def sentence(self, net: str) -> str:
        counted = f"{number(self.budgets, 'budget')}, {number(self.seeds, 'seed')}"
        if self.verdict not in (CLOSING, FLAT, WIDENING, NOT_ENOUGH):
            return f"{net}: {self.verdict}."
        if self.slope is None or self.interval is None:
            return (
                f"{net}: {self.verdict} ({counted}; at least {FEWEST_BUDGETS} budgets, {FEWEST_SEEDS} seeds and a spread between "
                "seeds are needed)."
            )
        low, high = self.interval
        return (
            f"{net}: {self.verdict}. Vanilla minus Pufferfish changes by {self.slope:+.2f} points per doubling of the budget "
            f"(95 % interval {low:+.2f} to {high:+.2f}; {counted})."
        )


def number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def trend(points: Mapping[float, Gaps], flat: float) -> Trend:
    """The trend of gaps by budget and seed; budgets are on any linear scale."""
    of_seeds: dict[int, dict[float, float]] = {}
    for budget, gaps in points.items():
        for seed, gap in gaps.items():
            of_seeds.setdefault(seed, {})[math.log2(budget)] = gap
    of_seeds = {seed: own for seed, own in of_seeds.items() if len(own) > 1}  # a single point has no slope
    budgets = len({place for own in of_seeds.values() for place in own})
    if budgets < FEWEST_BUDGETS or len(of_seeds) < FEWEST_SEEDS:
        return Trend(NOT_ENOUGH, budgets, len(of_seeds))
    found = slope(list(of_seeds.values()))
    if found is None:
        return Trend(NOT_ENOUGH, budgets, len(of_seeds))
    largest = max(place for own in of_seeds.values() for place in own)
    gap = fmean(own[largest] for own in of_seeds.values() if largest in own)
    return Trend(verdict(found.interval(), flat, gap), budgets, len(of_seeds), found.mean, found.interval())


def verdict(interval: tuple[float, float], flat: float, gap: float) -> str:
    """From the 95 % interval of the slope, and the gap at the largest budget: a gap below zero closes by rising."""
    low, high = interval if gap >= 0 else (-interval[1], -interval[0])
    if -flat < low and high < flat:
        return FLAT
    if high < 0:
        return CLOSING
    return WIDENING if low > 0 else NOT_ENOUGH


def slope(groups: Sequence[Mapping[float, float]]) -> Differences | None:
    """The slope that all groups of points (x -> y) share, each group with its own intercept: least squares.

    None if the points lie on these lines exactly: then nothing is known about their spread.
    """
    centred = [
        (x - fmean(group), y - fmean(group.values())) for group in groups for x, y in group.items()
    ]  # the intercepts drop out
    squares = sum(x * x for x, _ in centred)
    steepness = sum(x * y for x, y in centred) / squares
    degrees = len(centred) - len(groups) - 1
    residuals = [y - steepness * x for x, y in centred]
    largest = max(abs(y) for group in groups for y in group.values())
    if max(map(abs, residuals)) <= ROUNDING * largest:
        return None
    return Differences(steepness, math.sqrt(sum(r * r for r in residuals) / degrees / squares), degrees)
