"""Compare our numbers with the paper's: a verdict on each number and on each claim. Pure functions of numbers."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean, stdev

from pufferfish_bench.paper import statistics
from pufferfish_bench.paper.numbers import PaperNumber, same_digits
from pufferfish_bench.paper.quantities import Quantity
from pufferfish_bench.paper.statistics import LEVEL, Differences, Plan

SIGMAS = 2.0
ORDER = 10.0  # an order of growth O(...) is reproduced within this factor: the paper's own counts have constants up to 12

# numbers
WITHIN, BETTER, WORSE = "reproduced (within 2 sigma)", "reproduced (better)", "not reproduced (worse)"
EQUAL, OF_THAT_ORDER, DIFFERENT = "reproduced (equal)", "reproduced (same order)", "not reproduced (differs)"
EQUAL_ROUNDED = "reproduced (from rounded counts)"
NO_NUMBER = ""
# claims
HOLDS, OPPOSITE, ALIKE = "reproduced", "not reproduced", "no significant difference"
# both
NOT_RUN, ONE_SEED, NO_SPREAD = "not tested (not run)", "not tested (one seed)", "not tested (no spread)"
NOT_PAIRED = "not tested (no seed in common)"
BESIDE_OTHERS = "not tested (measured beside other processes)"
OTHER_PROFILE, UNKNOWN_MACHINE = "not comparable (another profile)", "not comparable (unknown machine)"
TWO_MACHINES, OTHER_DATA = "not comparable (different machines or threads)", "not comparable (different data)"
CROWDED = "not comparable (more workers than cores)"
INCOMPARABLE = (OTHER_PROFILE, UNKNOWN_MACHINE, BESIDE_OTHERS)
COMPARED = (WITHIN, BETTER, WORSE)


@dataclass(frozen=True)
class Sample:
    """One quantity of the runs of a cell, a value for each seed."""

    values: tuple[float, ...]
    seeds: tuple[int, ...] = ()  # by default 1, 2, 3, ...

    @property
    def by_seed(self) -> dict[int, float]:
        return dict(zip(self.seeds or range(1, len(self.values) + 1), self.values, strict=True))

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, by the t distribution; None for a single value and for values without a spread."""
        if len(self.values) < 2 or spread_free(self.values):
            return None
        return Differences.paired(self.values).interval()


def of_figure(
    quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
) -> str:
    """The verdict on a measured number. Sigma is that of a single run, the paper's spread and ours combined.

    A time is compared on any machine, which the report names beside the verdict.
    """
    if ours is None:
        return NOT_RUN
    if paper is None:
        return NO_NUMBER
    if profile != "paper":
        return OTHER_PROFILE
    if quantity.is_time and not machines:
        return UNKNOWN_MACHINE
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
    """What our runs say about the claim that one sample is higher, or lower, than another, or as good."""

    verdict: str
    ratio: float | None = None  # than / of: for times, the speed-up
    difference: float | None = None  # of - than
    interval: tuple[float, float] | None = None  # 95 %, of the ratio for times and of the difference for everything else
    p: float | None = None
    corrected_p: float | None = None  # for the number of claims in the report
    seeds: tuple[int, int] = (0, 0)
    margin: float = 0.0  # within which a difference counts as none, in units of the quantity
    plan: Plan | None = None  # for the number of seeds needed
    seeds_needed: int | None = None  # to decide the claim, where it is not decided

    def corrected(self, p: float, claims: int) -> "Judgement":
        """The same with a p value that is corrected for the number of claims, on which the verdict depends."""
        if p < LEVEL:
            return replace(self, corrected_p=p)
        return replace(self, corrected_p=p, verdict=ALIKE, seeds_needed=self.plan.seeds(LEVEL / claims) if self.plan else None)

    def without_verdict(self, why: str, *, keep_interval: bool = False) -> "Judgement":
        """The same numbers, which decide nothing for this reason; nothing changes if there is nothing to decide."""
        if not all(self.seeds):
            return self
        return replace(self, verdict=why, p=None, interval=self.interval if keep_interval else None)


def of_relation(
    of: Sample | None,
    direction: str,
    than: Sample | None,
    *,
    margin: float = 0.0,
    share: bool = False,
    is_time: bool = False,
    effect: float | None = None,
    deviation: float | None = None,
) -> Judgement:
    """Whether the claim is reproduced, contradicted, or not decided by the runs; differences are paired by seed.

    Without a margin: a two-sided test of the difference. With one (or a `share` of the mean of `than`): an equivalence test.
    Times are compared by the logarithm of their ratio. `effect` is the paper's ratio or difference, for the number of seeds
    needed. `deviation` is a known standard deviation of a difference, for a single seed.
    """
    seeds = (size(of), size(than))
    if of is None or than is None:
        return Judgement(NOT_RUN, seeds=seeds)
    common = [(one, other) for seed, one in of.by_seed.items() if (other := than.by_seed.get(seed)) is not None]
    logarithmic = is_time and all(value > 0 for pair in common for value in pair)
    differences = [math.log(one / other) if logarithmic else one - other for one, other in common]
    ratio = than.mean / of.mean if of.mean else None
    if logarithmic and common:
        ratio = math.exp(-fmean(differences))
    difference = fmean(one - other for one, other in common) if common else of.mean - than.mean
    plain = Judgement(ONE_SEED, ratio, difference, seeds=seeds)
    if not common:
        return replace(plain, verdict=NOT_PAIRED)
    if len(common) == 1 and not deviation:
        return plain
    if len(common) > 1 and spread_free(differences):
        return replace(plain, verdict=NO_SPREAD)
    several = len(common) > 1
    found = Differences.paired(differences) if several else Differences.known_spread(differences, deviation)
    low, high = found.interval()
    granted = margin
    if share:
        granted = math.log1p(margin) if logarithmic else margin * abs(fmean(other for _, other in common))
    verdict, p = of_differences(found, direction, granted)
    target = granted if margin else effect_size(effect, logarithmic=logarithmic, is_time=is_time)
    plan = Plan(stdev(differences), target, equivalence=margin > 0) if several else None
    bounds = (math.exp(-high), math.exp(-low)) if logarithmic else (low, high)
    return replace(
        plain, verdict=verdict, interval=None if is_time and not logarithmic else bounds, p=p, margin=granted, plan=plan
    )


def of_counts(
    of: Sample | None,
    direction: str,
    than: Sample | None,
    *,
    printed: float | None,
    is_ratio: bool,
    as_printed: Callable[[float], float] = float,
) -> Judgement:
    """Whether two counts have the ratio (than / of) or difference (of - than) that the paper prints, in all its digits.

    The paper may have computed it from rounded counts (`as_printed`). If it prints no number, the direction decides.
    """
    seeds = (size(of), size(than))
    if of is None or than is None:
        return Judgement(NOT_RUN, seeds=seeds)

    def compare(one: float, other: float) -> float:
        return (other / one if one else math.inf) if is_ratio else one - other

    if printed is None:
        higher, lower = of.mean > than.mean, of.mean < than.mean
        verdict = HOLDS if (higher if direction == "higher" else lower) else OPPOSITE
    elif same_digits(compare(of.mean, than.mean), printed):
        verdict = EQUAL
    else:
        rounded = compare(as_printed(of.mean), as_printed(than.mean))
        verdict = EQUAL_ROUNDED if same_digits(rounded, printed) else DIFFERENT
    return Judgement(verdict, than.mean / of.mean if of.mean else None, of.mean - than.mean, seeds=seeds)


def effect_size(effect: float | None, *, logarithmic: bool, is_time: bool) -> float:
    """The size of the paper's ratio or difference on the scale of the test; 0 if it has none there."""
    if effect is None or is_time != logarithmic:
        return 0.0
    return abs(math.log(effect) if logarithmic else effect)


def of_differences(found: Differences, direction: str, margin: float) -> tuple[str, float]:
    """The verdict at the uncorrected level, and the p value of the hypothesis that it rests on."""
    if not margin:
        p = statistics.two_sided(found)
        decided = HOLDS if (found.mean > 0) == (direction == "higher") else OPPOSITE
    else:
        inside, beyond = statistics.equivalent(found, margin), statistics.outside(found, margin)
        better = (found.mean > 0) == (direction == "higher")
        p, decided = min((inside, HOLDS), (beyond, BETTER if better else OPPOSITE))
    return (decided if p < LEVEL else ALIKE), p


def spread_free(values: Sequence[float]) -> bool:
    """Whether all values are equal, up to rounding errors: that says nothing about how far the next one may be."""
    return max(values) - min(values) <= 1e-12 * max(map(abs, values))


def not_tested(why: str) -> str:
    return f"not tested ({why})"


def size(sample: Sample | None) -> int:
    return len(sample.values) if sample else 0


def sample(values: Sequence[float | None], seeds: Sequence[int] = ()) -> Sample | None:
    """The values that are there, with their seeds (by default 1, 2, 3, ...); None if there are none."""
    there = {seed: float(value) for seed, value in zip(seeds or count(1), values, strict=False) if value is not None}
    return Sample(tuple(there.values()), tuple(there)) if there else None
