"""The statistics of a claim, fixed before the runs. Pure functions of numbers.

Two cells with the same seed share their initial weights and batches, so their values are compared seed by seed: all tests are t
tests on the differences. A claim with a margin ("as accurate within 1 point") is an equivalence test: two one-sided tests at the
margin. Holm's correction is applied over all claims of a report.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.05
CONFIDENCE = 0.95
POWER = 0.8  # at the number of seeds that a plan returns
MOST_SEEDS = 1000  # beyond this, the number of seeds is not computed
MOST_SHIFT = 30.0  # standard errors; SciPy's non-central t distribution overflows for larger shifts, at a power of 1


@dataclass(frozen=True)
class Differences:
    """One difference for each seed: their mean, its standard error and its distribution around the true mean."""

    mean: float
    error: float
    degrees: float  # of freedom; infinite if the spread is known

    @classmethod
    def paired(cls, values: Sequence[float]) -> "Differences":
        return cls(fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1)

    @classmethod
    def known_spread(cls, values: Sequence[float], deviation: float) -> "Differences":
        """For differences that are too few to show their own spread."""
        return cls(fmean(values), deviation / math.sqrt(len(values)), math.inf)

    def above(self, line: float) -> float:
        """The p value of the claim that the true mean is above a line."""
        from scipy.special import (
            stdtr,
        )  # scipy.stats takes a second to import; with infinite degrees this is the normal distribution

        return float(stdtr(self.degrees, (line - self.mean) / self.error))

    def below(self, line: float) -> float:
        from scipy.special import stdtr

        return float(stdtr(self.degrees, (self.mean - line) / self.error))

    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the true mean."""
        half = self.error * quantile((1 + CONFIDENCE) / 2, self.degrees)
        return self.mean - half, self.mean + half


def quantile(share: float, degrees: float) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(share) if math.isinf(degrees) else stdtrit(degrees, share))


def two_sided(found: Differences) -> float:
    """The p value of the claim that the true mean is not zero."""
    return min(1.0, 2 * min(found.above(0.0), found.below(0.0)))


def equivalent(found: Differences, margin: float) -> float:
    """The p value of the claim that the true mean is less than `margin` away from zero: the larger of two one-sided tests."""
    return max(found.above(-margin), found.below(margin))


def outside(found: Differences, margin: float) -> float:
    """The p value of the claim that the true mean is more than `margin` away from zero."""
    return min(1.0, 2 * min(found.below(-margin), found.above(margin)))


def holm(p_values: Mapping[object, float]) -> dict[object, float]:
    """Each p value corrected for their number, so that the chance of any false claim among all stays below the level."""
    corrected: dict[object, float] = {}
    largest = 0.0
    for place, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p))
        corrected[key] = largest
    return corrected


@dataclass(frozen=True)
class Plan:
    """What a claim asks of more seeds: differences with this standard deviation are to decide it."""

    deviation: float
    target: float  # the margin of an equivalence test, or the size of a true difference
    equivalence: bool  # to show equivalence if there is no true difference; else to show a true difference of that size

    def seeds(self, level: float = LEVEL) -> int | None:
        """The seeds at which the test has a power of 80 %; None if that takes more than MOST_SEEDS, or if nothing is asked."""
        if not (self.target > 0 and self.deviation > 0) or self.power(MOST_SEEDS, level) < POWER:
            return None
        low, high = 1, MOST_SEEDS  # one seed has no spread; power grows with the seeds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.power(middle, level) >= POWER else (middle, high)
        return high

    def power(self, seeds: int, level: float) -> float:
        """The chance that the test decides."""
        from scipy.special import nctdtr

        shift = self.target / (self.deviation / math.sqrt(seeds))
        critical = quantile(1 - (level if self.equivalence else level / 2), seeds - 1)
        if shift > critical + MOST_SHIFT:
            return 1.0
        beyond = 1 - float(nctdtr(seeds - 1, shift, critical))
        return max(0.0, 2 * beyond - 1) if self.equivalence else beyond
