"""Verdicts on numbers and claims: no more than the data support."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.paper import relations, verdicts
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


def test_without_a_spread_there_is_no_test():
    assert relation([1.0], "higher", [2.0, 3.0]) == verdicts.ONE_SEED
    assert relation([1.0, 1.0], "higher", [2.0, 2.0]) == verdicts.NO_SPREAD
    assert relation([1.0, 2.0], "higher", [2.0, 3.0]) == verdicts.NO_SPREAD  # the differences have none
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


@pytest.mark.parametrize("machines", [("Tesla V100-SXM2-16GB",), ("NVIDIA A100",), ("a processor", "V100")])
def test_a_time_of_any_machine_is_compared(machines: tuple[str, ...]):
    assert judge(SECONDS, [10.0], (13.5, 0.02), machines=machines) == verdicts.BETTER


def test_what_cannot_be_compared_gets_no_better_and_no_worse():
    assert judge(SECONDS, [10.0], (9.0, 0.1), machines=()) == verdicts.UNKNOWN_MACHINE
    assert judge(ACCURACY, [10.0], (90.0, 0.1), profile="cpu") == verdicts.OTHER_PROFILE
    assert judge(SECONDS, [10.0], (13.5, 0.02), machines=("a processor",), profile="cpu") == verdicts.OTHER_PROFILE
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
    high, low, wide = [94.0, 94.1, 94.2], [93.0, 93.1, 93.3], [90.0, 94.0, 97.0]
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
    assert found in ({verdicts.ALIKE}, {verdicts.NO_SPREAD}, {verdicts.ONE_SEED}, {verdicts.HOLDS, verdicts.OPPOSITE})


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6), st.floats(-1e3, 1e3))
def test_what_two_cells_share_by_seed_does_not_matter(values: list, shift: float):
    """Seeds that are good for both cells, or bad for both, change no verdict: only the differences count."""
    noise = [0.01 * place**2 for place in range(len(values))]
    paired = [value + shift + little for value, little in zip(values, noise, strict=True)]
    same = relation([shift + little for little in noise], "higher", [0.0] * len(noise))
    assert relation(paired, "higher", values) == same


def test_values_are_paired_by_seed_not_by_place():
    of, than = verdicts.sample([1.0, 2.0, 3.05], [1, 2, 3]), verdicts.sample([2.5, 0.5, 1.45], [3, 1, 2])
    assert verdicts.of_relation(of, "higher", than).verdict == verdicts.HOLDS
    assert verdicts.of_relation(of, "higher", Sample(than.values)).verdict == verdicts.ALIKE
    assert verdicts.of_relation(of, "higher", verdicts.sample([0.5], [4])).verdict == verdicts.NOT_PAIRED
    two = verdicts.of_relation(of, "higher", verdicts.sample([0.5, 1.45, 7.0], [1, 2, 9]))
    assert (two.verdict, two.seeds) == (verdicts.HOLDS, (3, 3))  # the seeds in common are two


def test_as_good_means_inside_the_margin_on_both_sides():
    theirs = [94.0, 94.1, 94.2]

    def shifted(by: float) -> list:
        return [value + by + noise for value, noise in zip(theirs, (-0.02, 0.0, 0.02), strict=True)]

    for direction in relations.DIRECTIONS:
        assert relation(shifted(0.5), direction, theirs, margin=1.0) == verdicts.HOLDS
        assert relation(shifted(-0.5), direction, theirs, margin=1.0) == verdicts.HOLDS
        assert relation(shifted(0.99), direction, theirs, margin=1.0) == verdicts.ALIKE
    assert relation(shifted(-2.0), "higher", theirs, margin=1.0) == verdicts.OPPOSITE
    assert relation(shifted(2.0), "higher", theirs, margin=1.0) == verdicts.BETTER
    assert relation(shifted(-2.0), "lower", theirs, margin=1.0) == verdicts.BETTER
    assert relation(shifted(2.0), "lower", theirs, margin=1.0) == verdicts.OPPOSITE


def test_a_margin_that_is_a_share_is_one_of_the_other_cells_mean():
    ours, theirs = Sample((101.0, 101.5, 102.2)), Sample((100.0, 100.5, 101.0))
    share = verdicts.of_relation(ours, "lower", theirs, margin=0.02, share=True)
    assert share == verdicts.of_relation(ours, "lower", theirs, margin=0.02 * theirs.mean)
    assert share.difference == pytest.approx(16 / 15)
    assert verdicts.of_relation(ours, "lower", theirs, margin=0.05, share=True).verdict == verdicts.HOLDS


def test_a_speedup_is_the_other_ones_time_over_ours_with_its_interval():
    even = verdicts.of_relation(Sample((2.0, 2.0)), "lower", Sample((3.0, 3.0)), is_time=True)
    assert (even.ratio, even.difference, even.seeds, even.interval) == (pytest.approx(1.5), -1.0, (2, 2), None)
    found = verdicts.of_relation(Sample((2.0, 1.0)), "lower", Sample((3.0, 1.6)), is_time=True)
    assert found.ratio == pytest.approx(math.sqrt(1.5 * 1.6))  # the geometric mean: a seed that is slow for both counts the same
    assert found.interval[0] < found.ratio < found.interval[1]
    half = 12.7062047 * abs(math.log(1.6 / 1.5)) / 2  # t with one degree of freedom, times the error of the mean of two
    assert found.interval == pytest.approx((found.ratio * math.exp(-half), found.ratio * math.exp(half)))


def test_one_seed_is_compared_with_the_papers_spread_where_it_is_known():
    def judged(difference: float, margin: float = 0.0) -> str:
        return verdicts.of_relation(Sample((90.0 + difference,)), "higher", Sample((90.0,)), margin=margin, deviation=0.5).verdict

    assert (judged(0.99), judged(0.97)) == (verdicts.HOLDS, verdicts.ALIKE)  # 1.96 deviations
    assert (judged(-0.99), judged(-0.97)) == (verdicts.OPPOSITE, verdicts.ALIKE)
    assert (judged(0.0, margin=0.83), judged(0.0, margin=0.81)) == (verdicts.HOLDS, verdicts.ALIKE)  # 1.645: one-sided


def test_a_correction_only_ever_takes_a_decision_back():
    decided = verdicts.of_relation(Sample((2.0, 2.1, 2.2)), "higher", Sample((1.0, 1.1, 1.3)), effect=0.1)
    assert decided.verdict == verdicts.HOLDS
    kept, lost = decided.corrected(0.049, 10), decided.corrected(0.051, 10)
    assert (kept.verdict, kept.seeds_needed) == (verdicts.HOLDS, None)
    assert (lost.verdict, lost.p, lost.corrected_p) == (verdicts.ALIKE, decided.p, 0.051)
    assert lost.seeds_needed > decided.corrected(0.051, 1).seeds_needed > 1
