"""Whether two samples have different means: Welch's t-test, in plain arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

STEPS = 500  # of the continued fraction; it needs fewer than 100 for any number of seeds there will be


@dataclass(frozen=True)
class Test:
    """The statistic, its degrees of freedom and the two-sided probability of one so far from zero if the means were the same."""

    t: float
    freedom: float
    p: float


def test(one: Sequence[float], other: Sequence[float]) -> Test | None:
    """Welch's test of two samples; None without a spread: of fewer than two values in one, or none that differ in either."""
    if min(len(one), len(other)) < 2:
        return None
    a, b = variance(one) / len(one), variance(other) / len(other)
    difference = fmean(one) - fmean(other)
    if a + b == 0.0:  # two values that happen to be equal say nothing of how far the next may be
        return None
    t = difference / math.sqrt(a + b)
    share = a / (a + b)  # of the spread: their squares themselves could be too small to hold
    freedom = 1 / (share**2 / (len(one) - 1) + (1 - share) ** 2 / (len(other) - 1))
    return Test(t, freedom, two_sided(t, freedom))


def two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t is at least so far from zero."""
    square = t * t
    if square < freedom:  # each where it loses no digits: there x would be nearly 1
        return 1.0 - incomplete_beta(square / (freedom + square), 0.5, freedom / 2)
    return incomplete_beta(freedom / (freedom + square), freedom / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # symmetric under (x, a, b) -> (1 - x, b, a)
    if x > (a + 1) / (a + b + 2):  # where the other end's fraction is the one that converges
        return 1.0 - front / (b * fraction(1.0 - x, b, a))
    return front / (a * fraction(x, a, b))


def fraction(x: float, a: float, b: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)), by Lentz's method."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / ((1.0 + term * d) or tiny)
        c = (1.0 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
