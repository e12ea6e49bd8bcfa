"""Ours beside the paper's: a verdict on each figure and on each relation the paper claims. Pure functions of numbers."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pufferfish_bench.report import welch
from pufferfish_bench.report.numbers import PaperNumber
from pufferfish_bench.report.quantities import Quantity

SIGMAS = 2.0
ORDER = 10.0  # to this factor an order is right: its own counts of parameters have constants up to 12
LEVEL = 0.05  # of the Welch test, two-sided
PAPERS_MACHINE = "V100"

WITHIN, BETTER, WORSE = "within 2 sigma", "better", "worse"
EQUAL, DIFFERENT, OF_THAT_ORDER = "equal", "differs", "of that order"
NOT_RUN, NO_SPREAD, NO_NUMBER = "not run", "no spread to judge by", ""
OTHER_PROFILE, OTHER_MACHINE = "not comparable (another profile)", "not comparable (another machine)"
HOLDS, OPPOSITE, ALIKE = "holds", "the opposite", "cannot be told apart"
UNDECIDED = "cannot be told"  # of a claim with a margin: the two may well differ, by less or by more than that
ONE_SEED = " (one seed)"
TWO_MACHINES, OTHER_DATA = "not comparable (other machines or threads)", "not comparable (other data)"
CROWDED = "not comparable (more workers than cores)"
INCOMPARABLE = (OTHER_PROFILE, OTHER_MACHINE)


@dataclass(frozen=True)
class Sample:
    """One figure of the runs of a cell, a value for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None


def of_figure(
    quantity: Quantity,
    ours: Sample | None,
    paper: PaperNumber | None,
    *,
    profile: str,
    machines: Collection[str],
    exact: bool = False,
) -> str:
    """How ours stands to the paper's: sigma is that of a single run, theirs and ours together; what is exact has none."""
    if ours is None:
        return NOT_RUN
    if paper is None:
        return NO_NUMBER
    if quantity.is_time and not (machines and all(PAPERS_MACHINE in machine for machine in machines)):
        return OTHER_MACHINE
    if profile != "paper":
        return OTHER_PROFILE
    if exact and quantity.show(ours.mean) == quantity.show(paper.mean):
        return EQUAL
    if exact:
        return OF_THAT_ORDER if paper.is_order and 1 / ORDER <= ours.mean / paper.mean <= ORDER else DIFFERENT
    if paper.deviation is None and ours.deviation is None:
        return NO_SPREAD
    sigma = math.hypot(paper.deviation or 0.0, ours.deviation or 0.0)
    if abs(ours.mean - paper.mean) <= SIGMAS * sigma:
        return WITHIN
    return BETTER if (ours.mean > paper.mean) == quantity.higher_is_better else WORSE


@dataclass(frozen=True)
class Judgement:
    """What the runs say to a claim that one sample is higher, or lower, than another."""

    verdict: str
    ratio: float | None = None  # than / of: for times, how many times as fast
    difference: float | None = None  # of - than
    p: float | None = None
    seeds: tuple[int, int] = (0, 0)


def of_relation(of: Sample | None, direction: str, than: Sample | None, *, margin: float = 0.0, share: bool = False) -> Judgement:
    """Whether the claim holds, the opposite does, or neither can be told.

    The first is granted a margin, or a share of each of the second's: p is of the test with it, ratio and difference are without.
    """
    if of is None or than is None:
        return Judgement(NOT_RUN, seeds=(size(of), size(than)))
    difference, seeds = of.mean - than.mean, (size(of), size(than))
    ratio = than.mean / of.mean if of.mean else None
    granted = margin if direction == "higher" else -margin
    line = [value * (1 - granted) if share else value - granted for value in than.values]  # that the first must pass
    found, undecided = welch.test(of.values, line), UNDECIDED if margin else ALIKE
    if found is None:
        return Judgement(undecided + ONE_SEED if min(seeds) < 2 else NO_SPREAD, ratio, difference, None, seeds)
    as_claimed = HOLDS if (found.t > 0) == (direction == "higher") else OPPOSITE
    return Judgement(as_claimed if found.p < LEVEL else undecided, ratio, difference, found.p, seeds)


def size(sample: Sample | None) -> int:
    return len(sample.values) if sample else 0


def sample(values: Sequence[float | None]) -> Sample | None:
    """The values that there are; None where there is none."""
    there = tuple(float(value) for value in values if value is not None)
    return Sample(there) if there else None
