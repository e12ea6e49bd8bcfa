"""Compare our numbers with the paper's: a verdict on each number and on each claim. Pure functions of numbers."""

import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pufferfish_bench.paper.numbers import PaperNumber
from pufferfish_bench.paper.quantities import Quantity

SIGMAS = 2.0
ORDER = 10.0  # an order of growth O(...) is reproduced within this factor: the paper's own counts have constants up to 12
LEVEL = 0.05  # of the two-sided Welch test
PAPERS_MACHINE = "V100"

# numbers
WITHIN, BETTER, WORSE = "reproduced (within 2 sigma)", "reproduced (better)", "not reproduced (worse)"
EQUAL, OF_THAT_ORDER, DIFFERENT = "reproduced (equal)", "reproduced (same order)", "not reproduced (differs)"
NO_NUMBER = ""
# claims
HOLDS, OPPOSITE, ALIKE = "reproduced", "not reproduced", "no significant difference"
UNDECIDED = ALIKE  # a claim with a margin: neither inside nor outside it
# both
NOT_RUN, ONE_SEED, NO_SPREAD = "not tested (not run)", "not tested (one seed)", "not tested (no spread)"
OTHER_PROFILE, OTHER_MACHINE = "not comparable (another profile)", "not comparable (another machine)"
TWO_MACHINES, OTHER_DATA = "not comparable (different machines or threads)", "not comparable (different data)"
CROWDED = "not comparable (more workers than cores)"
INCOMPARABLE = (OTHER_PROFILE, OTHER_MACHINE)


@dataclass(frozen=True)
class Sample:
    """One quantity of the runs of a cell, a value for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None


def of_figure(
    quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
) -> str:
    """The verdict on a measured number. Sigma is that of a single run, the paper's spread and ours combined."""
    if ours is None:
        return NOT_RUN
    if paper is None:
        return NO_NUMBER
    if quantity.is_time and not (machines and all(PAPERS_MACHINE in machine for machine in machines)):
        return OTHER_MACHINE
    if profile != "paper":
        return OTHER_PROFILE
    if paper.deviation is None and ours.deviation is None:
        return NO_SPREAD
    sigma = math.hypot(paper.deviation or 0.0, ours.deviation or 0.0)
    if abs(ours.mean - paper.mean) <= SIGMAS * sigma:
        return WITHIN
    return BETTER if (ours.mean > paper.mean) == quantity.higher_is_better else WORSE


def of_count(quantity: Quantity, ours: Sample | None, paper: PaperNumber | None) -> str:
    """The verdict on a number that is counted: equal in all digits that the paper prints, or of the order that it gives."""
    if ours is None:
        return NOT_RUN
    if paper is None:
        return NO_NUMBER
    if quantity.show(ours.mean) == quantity.show(paper.mean):
        return EQUAL
    return OF_THAT_ORDER if paper.is_order and 1 / ORDER <= ours.mean / paper.mean <= ORDER else DIFFERENT


@dataclass(frozen=True)
class Judgement:
    """What our runs say about the claim that one sample is higher, or lower, than another."""

    verdict: str
    ratio: float | None = None  # than / of: for times, the speed-up
    difference: float | None = None  # of - than
    p: float | None = None
    seeds: tuple[int, int] = (0, 0)


def of_relation(of: Sample | None, direction: str, than: Sample | None, *, margin: float = 0.0, share: bool = False) -> Judgement:
    """Whether the claim is reproduced, contradicted, or not decided by the runs.

    The test shifts `than` by the margin in favour of the claim, or by that share of its values; `ratio` and `difference` do not.
    """
    seeds = (size(of), size(than))
    if of is None or than is None:
        return Judgement(NOT_RUN, seeds=seeds)
    difference, ratio = of.mean - than.mean, than.mean / of.mean if of.mean else None
    granted = margin if direction == "higher" else -margin
    line = [value * (1 - granted) if share else value - granted for value in than.values]
    if min(seeds) < 2 or spread_free(of.values, line):
        return Judgement(ONE_SEED if min(seeds) < 2 else NO_SPREAD, ratio, difference, None, seeds)
    t, p = welch(of.values, line)
    if p >= LEVEL:
        return Judgement(UNDECIDED if margin else ALIKE, ratio, difference, p, seeds)
    return Judgement(HOLDS if (t > 0) == (direction == "higher") else OPPOSITE, ratio, difference, p, seeds)


def spread_free(*samples: Sequence[float]) -> bool:
    """Whether all values within each sample are equal: that says nothing about how far the next one may be."""
    return all(min(sample) == max(sample) for sample in samples)


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The statistic and the two-sided p of Welch's t-test."""
    from scipy.stats import ttest_ind  # a second of imports that most commands do not need

    scale = max(map(abs, (*one, *other)))  # the square of a tiny deviation would underflow
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal values: the verdict is the same
        found = ttest_ind([value / scale for value in one], [value / scale for value in other], equal_var=False)
    return float(found.statistic), float(found.pvalue)


def size(sample: Sample | None) -> int:
    return len(sample.values) if sample else 0


def sample(values: Sequence[float | None]) -> Sample | None:
    """The values that are there; None if there are none."""
    there = tuple(float(value) for value in values if value is not None)
    return Sample(there) if there else None
