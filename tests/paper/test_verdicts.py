"""Verdicts on numbers and claims: no more than the data support."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pufferfish_bench.paper import tables, verdicts
from pufferfish_bench.paper.numbers import PaperNumber
from pufferfish_bench.paper.quantities import QUANTITIES
from pufferfish_bench.paper.verdicts import Sample

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
samples = st.lists(numbers, min_size=2, max_size=6)
ACCURACY, LOSS, SECONDS = QUANTITIES["test_accuracy"], QUANTITIES["test_loss"], QUANTITIES["seconds_per_epoch"]


def judge(quantity, ours, paper, *, profile="paper", machines=("Tesla V100-SXM2-16GB",)) -> str:
    number = paper and PaperNumber(*paper)
    return verdicts.of_figure(quantity, verdicts.sample(ours), number, profile=profile, machines=machines)


def judge_count(name, ours, *paper) -> str:
    return verdicts.of_count(QUANTITIES[name], verdicts.sample([ours]), PaperNumber(*paper))


@given(st.floats(0, 1e3))
def test_the_test_has_the_closed_form_of_one_degree_of_freedom(t: float):
    """A sample of two with no spread in the other: one degree of freedom, and t is the distance over half the range."""
    found, p = verdicts.welch([t - 1, t + 1], [0.0, 0.0])
    assert found == pytest.approx(t, abs=1e-9)
    assert p == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-9)


def test_welch_by_hand():
    """Means 2 and 6, variances 1 and 4, three each: t = -4 / sqrt(5/3) with 50/17 degrees of freedom."""
    t, p = verdicts.welch([1.0, 2.0, 3.0], [4.0, 6.0, 8.0])
    assert t == pytest.approx(-4 / math.sqrt(5 / 3))
    assert p == pytest.approx(0.0547867660, rel=1e-8)


@given(samples, samples)
def test_the_test_is_symmetric(one: list, other: list):
    assume(not verdicts.spread_free(one, other))
    (t, p), (mirrored, same) = verdicts.welch(one, other), verdicts.welch(other, one)
    assert t == pytest.approx(-mirrored)
    assert p == pytest.approx(same, abs=1e-9)
    assert 0 <= p <= 1


@given(samples, st.floats(0.1, 10), st.integers(-100, 100))
def test_units_do_not_matter_to_the_test(values: list, scale: float, shift: int):
    one, other = values, [value + 1 for value in reversed(values)]
    assume(max(values) - min(values) > 1e-3)
    changed = verdicts.welch(*([scale * value + shift for value in side] for side in (one, other)))
    assert changed[1] == pytest.approx(verdicts.welch(one, other)[1], abs=1e-6)


def test_a_tiny_spread_does_not_underflow():
    assert verdicts.welch([1e-200, 2e-200], [0.0, 0.0])[1] == pytest.approx(verdicts.welch([1.0, 2.0], [0.0, 0.0])[1])


def test_without_a_spread_there_is_no_test():
    assert relation([1.0], "higher", [2.0, 3.0]) == verdicts.ONE_SEED
    assert relation([1.0, 1.0], "higher", [2.0, 2.0]) == verdicts.NO_SPREAD
    assert relation([1.0, 1.0], "higher", [2.0, 3.0]) == verdicts.ALIKE


def test_within_two_sigma_of_both_spreads_together():
    paper = (90.0, 3.0)
    assert judge(ACCURACY, [82.0, 82.0], paper) == verdicts.WORSE
    assert judge(ACCURACY, [98.0, 98.0], paper) == verdicts.BETTER
    assert judge(ACCURACY, [95.9, 95.9], paper) == verdicts.WITHIN
    assert judge(ACCURACY, [94.0, 104.0], paper) == verdicts.WITHIN  # 99, but sigma is hypot(3, 7.1)
    assert judge(ACCURACY, [95.0], paper) == verdicts.WITHIN
    assert judge(ACCURACY, [97.0], paper) == verdicts.BETTER


def test_lower_is_better_where_it_is():
    assert judge(LOSS, [0.2, 0.2], (0.3, 0.01)) == verdicts.BETTER
    assert judge(SECONDS, [20.0, 20.0], (13.5, 0.02)) == verdicts.WORSE


def test_what_cannot_be_compared_gets_no_better_and_no_worse():
    assert judge(SECONDS, [10.0], (9.0, 0.1), machines=()) == verdicts.OTHER_MACHINE  # unknown machine
    assert judge(ACCURACY, [10.0], (90.0, 0.1), profile="cpu") == verdicts.OTHER_PROFILE
    assert judge(SECONDS, [10.0], (13.5, 0.02), machines=("a processor",)) == verdicts.OTHER_MACHINE
    assert judge(SECONDS, [10.0], (13.5, 0.02), machines=("a processor", "V100")) == verdicts.OTHER_MACHINE
    assert judge(SECONDS, [10.0], (13.5, 0.02), machines=("V100",), profile="cpu") == verdicts.OTHER_PROFILE
    assert judge(ACCURACY, [90.0], (90.0, None)) == verdicts.NO_SPREAD
    assert judge(ACCURACY, [], (90.0, 0.1)) == verdicts.NOT_RUN
    assert judge(ACCURACY, [90.0], None) == verdicts.NO_NUMBER


def test_counts_are_equal_to_the_digits_that_are_shown():
    assert judge_count("parameters", 8370634, 8370634, None) == verdicts.EQUAL
    assert judge_count("parameters", 8370635, 8370634, None) == verdicts.DIFFERENT
    assert judge_count("macs", 289953792, 0.29e9, None) == verdicts.EQUAL
    assert judge_count("macs", 280000000, 0.29e9, None) == verdicts.DIFFERENT


def test_an_order_is_right_to_a_factor_of_ten_and_any_other_count_to_the_unit():
    for ours, of_an_order in ((100.0, verdicts.EQUAL), (10.0, verdicts.OF_THAT_ORDER), (1000.0, verdicts.OF_THAT_ORDER)):
        assert judge_count("layer_macs", ours, 100.0, None, "O(n)") == of_an_order
    for ours in (9.0, 1001.0):
        assert judge_count("layer_macs", ours, 100.0, None, "O(n)") == verdicts.DIFFERENT
    assert judge_count("layer_macs", 101.0, 100.0, None, "n") == verdicts.DIFFERENT


def test_parameters_left_by_pruning_are_judged_by_their_spread():
    assert judge(QUANTITIES["parameters"], [16.4e6, 16.6e6], (16466787, None)) == verdicts.WITHIN
    assert judge(QUANTITIES["parameters"], [16466786], (16466787, None)) == verdicts.NO_SPREAD


def relation(of: list, direction: str, than: list, margin: float = 0.0) -> str:
    return verdicts.of_relation(verdicts.sample(of), direction, verdicts.sample(than), margin=margin).verdict


def test_a_claim_is_reproduced_contradicted_or_not_decided():
    high, low, wide = [94.0, 94.1, 94.2], [93.0, 93.1, 93.2], [90.0, 94.0, 97.0]
    assert relation(high, "higher", low) == relation(low, "lower", high) == verdicts.HOLDS
    assert relation(low, "higher", high) == relation(high, "lower", low) == verdicts.OPPOSITE
    assert relation(high, "higher", wide) == verdicts.ALIKE
    assert relation(high[:1], "higher", low) == verdicts.ONE_SEED
    assert relation(high[:1], "higher", low, margin=1.0) == verdicts.ONE_SEED
    assert relation([94.0, 94.0], "higher", [93.0, 93.0]) == verdicts.NO_SPREAD
    assert relation([], "higher", low) == verdicts.NOT_RUN


@given(samples, samples)
def test_a_claim_and_its_opposite_never_both_hold(one: list, other: list):
    found = {relation(one, "higher", other), relation(one, "lower", other)}
    assert found in ({verdicts.ALIKE}, {verdicts.NO_SPREAD}, {verdicts.HOLDS, verdicts.OPPOSITE})


@given(samples, samples, st.sampled_from(tables.DIRECTIONS), st.floats(0, 10))
def test_a_margin_only_ever_helps_the_claim(one: list, other: list, direction: str, margin: float):
    order = {verdicts.OPPOSITE: 0, verdicts.ALIKE: 1, verdicts.UNDECIDED: 1, verdicts.HOLDS: 2}
    granted, strict = relation(one, direction, other, margin), relation(one, direction, other)
    assume(verdicts.NO_SPREAD not in (granted, strict))
    assert order[granted] >= order[strict]


def test_a_margin_is_granted_in_the_direction_of_the_claim():
    ours, theirs = [93.4, 93.5, 93.6], [94.0, 94.1, 94.2]
    assert relation(ours, "higher", theirs) == verdicts.OPPOSITE
    assert relation(ours, "higher", theirs, margin=1.0) == verdicts.HOLDS
    assert relation(theirs, "lower", ours, margin=1.0) == verdicts.HOLDS
    assert relation(ours, "higher", theirs, margin=0.6) == verdicts.UNDECIDED  # though they differ significantly


def test_a_margin_that_is_a_share_is_one_of_each_value():
    ours, theirs = Sample((101.0, 101.5, 102.0)), Sample((100.0, 100.5, 101.0))
    judgement = verdicts.of_relation(ours, "lower", theirs, margin=0.02, share=True)
    assert judgement.p == verdicts.welch(ours.values, [1.02 * value for value in theirs.values])[1]
    assert judgement.difference == 1.0
    assert verdicts.of_relation(ours, "lower", theirs, margin=0.05, share=True).verdict == verdicts.HOLDS


def test_a_speedup_is_the_other_ones_time_over_ours():
    judgement = verdicts.of_relation(Sample((2.0, 2.0)), "lower", Sample((3.0, 3.0)))
    assert (judgement.ratio, judgement.difference, judgement.seeds) == (1.5, -1.0, (2, 2))
