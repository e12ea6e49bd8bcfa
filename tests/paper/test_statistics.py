"""The statistics of claims: closed forms, SciPy's own tests, and error rates on planted data."""

import math

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pufferfish_bench.paper import statistics, verdicts
from pufferfish_bench.paper.statistics import Differences, Plan
from pufferfish_bench.paper.verdicts import Sample

values = st.lists(st.floats(-100, 100), min_size=2, max_size=8)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def spread(numbers: list) -> bool:
    return max(numbers) - min(numbers) > 1e-3


@given(values, st.floats(-100, 100))
def test_one_sided_tests_are_those_of_scipy(numbers: list, line: float):
    assume(spread(numbers))
    found = Differences.paired(numbers)
    assert found.above(line) == pytest.approx(stats.ttest_1samp(numbers, line, alternative="greater").pvalue, abs=1e-9)
    assert found.below(line) == pytest.approx(stats.ttest_1samp(numbers, line, alternative="less").pvalue, abs=1e-9)


@given(values, st.integers(0, 2**20))
def test_the_two_sided_test_and_the_interval_are_those_of_scipy(numbers: list, seed: int):
    assume(spread(numbers))
    other = numpy.random.default_rng(seed).normal(size=len(numbers)).tolist()
    differences = [one - two for one, two in zip(numbers, other, strict=True)]
    assume(spread(differences))
    scipys = stats.ttest_rel(numbers, other)
    found = Differences.paired(differences)
    assert statistics.two_sided(found) == pytest.approx(scipys.pvalue, abs=1e-9)
    assert found.interval() == pytest.approx(tuple(scipys.confidence_interval(0.95)), rel=1e-6, abs=1e-6)


@given(values, st.floats(0.1, 50))
def test_equivalence_is_the_interval_of_90_percent_inside_the_margin(numbers: list, margin: float):
    assume(spread(numbers))
    found = Differences.paired(numbers)
    half = found.error * stats.t.ppf(0.95, len(numbers) - 1)
    assume(abs(abs(found.mean) + half - margin) > 1e-6)
    assert (statistics.equivalent(found, margin) < statistics.LEVEL) == (abs(found.mean) + half < margin)


@given(values, st.floats(0.1, 50))
def test_nothing_is_inside_and_outside_a_margin(numbers: list, margin: float):
    assume(spread(numbers))
    found = Differences.paired(numbers)
    assert max(statistics.equivalent(found, margin), statistics.outside(found, margin)) >= 0.5


def test_a_known_spread_gives_the_normal_distribution():
    found = Differences.known_spread([1.0], 0.5)
    assert found.above(0.0) == pytest.approx(stats.norm.sf(2.0))
    assert found.interval() == pytest.approx((1 - 0.5 * 1.959963985, 1 + 0.5 * 1.959963985))


@given(p_values)
def test_holm_is_its_definition(numbers: list):
    """Sorted, the k-th of m is multiplied by m - k + 1; then each is at least as large as those before it."""
    corrected = statistics.holm(dict(enumerate(numbers)))
    for place, p in enumerate(numbers):
        before = sorted(numbers)[: sorted(numbers).index(p) + 1]
        assert corrected[place] == pytest.approx(max(min(1.0, (len(numbers) - k) * q) for k, q in enumerate(before)))
        assert corrected[place] >= p


def simulated_power(plan: Plan, seeds: int, level: float) -> float:
    drawn = numpy.random.default_rng(7).normal(0.0 if plan.equivalence else plan.target, plan.deviation, size=(4000, seeds))
    tests = [Differences.paired(row) for row in drawn.tolist()]
    found = [statistics.equivalent(test, plan.target) if plan.equivalence else statistics.two_sided(test) for test in tests]
    return sum(p < level for p in found) / len(found)


@pytest.mark.parametrize("equivalence", [True, False])
@pytest.mark.parametrize("level", [0.05, 0.05 / 30])
@pytest.mark.parametrize(("deviation", "target"), [(0.5, 1.0), (1.0, 1.0), (2.0, 1.5)])
def test_the_seeds_of_a_plan_have_the_stated_power_and_one_fewer_has_less(deviation, target, level, equivalence):
    plan = Plan(deviation, target, equivalence)
    seeds = plan.seeds(level)
    assert simulated_power(plan, seeds, level) > statistics.POWER - 0.03
    assert simulated_power(plan, seeds - 1, level) < statistics.POWER + 0.03


def test_no_number_of_seeds_where_none_is_enough_or_nothing_is_asked():
    assert Plan(100.0, 0.01, equivalence=False).seeds() is None
    assert Plan(1.0, 0.0, equivalence=False).seeds() is None
    assert Plan(0.0, 1.0, equivalence=True).seeds() is None
    assert Plan(1e-9, 1.0, equivalence=True).seeds() == 2


def family(rng: numpy.random.Generator, differences: list, *, margin: float, seeds: int = 5) -> list[str]:
    """The corrected verdicts on planted runs: each cell of a claim has its own noise, and both share a large one."""
    claims = []
    for difference in differences:
        shared, of, than = rng.normal(0, 3, seeds), rng.normal(difference, 0.2, seeds), rng.normal(0, 0.2, seeds)
        judged = verdicts.of_relation(Sample(tuple(shared + of)), "higher", Sample(tuple(shared + than)), margin=margin)
        claims.append(judged)
    corrected = statistics.holm({place: claim.p for place, claim in enumerate(claims)})
    return [claim.corrected(corrected[place], len(claims)).verdict for place, claim in enumerate(claims)]


def rate(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


def upper(level: float, trials: int) -> float:
    """A rate that a true rate of `level` exceeds once in ten thousand times."""
    return stats.binom.ppf(0.9999, trials, level) / trials


TRIALS = 600


def test_a_family_without_differences_gives_a_false_verdict_at_most_at_the_stated_rate():
    rng = numpy.random.default_rng(1)
    false = [set(family(rng, [0.0] * 10, margin=0.0)) != {verdicts.ALIKE} for _ in range(TRIALS)]
    assert rate(false) <= upper(statistics.LEVEL, TRIALS)
    assert rate(false) > 0.01  # it does decide now and then: the correction is not stricter than stated


def test_planted_differences_are_found_in_their_direction():
    rng = numpy.random.default_rng(2)
    found = [family(rng, [3.0, -3.0, 0.0], margin=0.0) for _ in range(TRIALS)]
    assert rate([verdict[0] == verdicts.HOLDS for verdict in found]) > 0.99
    assert rate([verdict[1] == verdicts.OPPOSITE for verdict in found]) > 0.99
    assert rate([verdict[2] != verdicts.ALIKE for verdict in found]) <= upper(statistics.LEVEL, TRIALS)


def test_planted_equivalence_is_found_and_a_difference_at_the_margin_is_not():
    rng = numpy.random.default_rng(3)
    found = [family(rng, [0.0, -3.0, -1.0], margin=1.0) for _ in range(TRIALS)]
    assert rate([verdict[0] == verdicts.HOLDS for verdict in found]) > 0.95
    assert rate([verdict[1] == verdicts.OPPOSITE for verdict in found]) > 0.99
    assert rate([verdict[2] == verdicts.HOLDS for verdict in found]) <= upper(statistics.LEVEL, TRIALS)
    assert rate([verdict[2] == verdicts.OPPOSITE for verdict in found]) <= upper(statistics.LEVEL, TRIALS)


def test_unpaired_the_shared_noise_would_hide_what_is_found():
    """The planted noise of a seed is ten times the difference: only pairing finds it."""
    rng = numpy.random.default_rng(4)
    shared = rng.normal(0, 3, 5)
    of, than = shared + rng.normal(1.5, 0.2, 5), shared + rng.normal(0, 0.2, 5)
    assert verdicts.of_relation(Sample(tuple(of)), "higher", Sample(tuple(than))).verdict == verdicts.HOLDS
    assert stats.ttest_ind(of, than).pvalue > statistics.LEVEL
    assert math.isclose(of.mean() - than.mean(), 1.5, abs_tol=0.3)
