"""Claims over bandwidth: one test at each rate, a verdict that names the rates, and the points at which two methods cross."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import bandwidth, curves, outcome, statistics, tables, verdicts
from pufferfish_bench.paper.bandwidth import OverBandwidth
from pufferfish_bench.paper.curves import Curve
from pufferfish_bench.paper.verdicts import Judgement, Sample
from tests.support.records import write_lab_run

MEGA, GIGA = 1e6, 1e9
RATES = {"100mbit": 100 * MEGA, "1gbit": GIGA, "10gbit": 10 * GIGA}
HOLDS, OPPOSITE, ALIKE = verdicts.HOLDS, verdicts.OPPOSITE, verdicts.ALIKE
CLAIM = {"claim": "a is faster", "over": "bandwidth", "quantity": "seconds_per_epoch", "of": "a", "is": "lower", "than": "b"}
CONTENT: dict[str, Any] = {
    "title": "planted", "seeds": 3, "kind": "lab", "picture": "lab", "figures": {"seconds_per_epoch": None},
    "cells": {"a": {"overrides": []}, "b": {"overrides": []}},
    "over": {name: {"workers": 2, "cap": name} for name in RATES} | {"4hosts": {"workers": 4, "cap": "1gbit"}},
    "relations": [CLAIM],
}  # fmt: skip


def parsed(**content: Any) -> tables.PaperTable:
    return tables.parse("figure0", "cpu", CONTENT | content)


def over(*found: str, rates: tuple[float, ...] = (100 * MEGA, 300 * MEGA, GIGA, 3 * GIGA, 10 * GIGA)) -> str:
    return OverBandwidth(dict(zip(rates, map(Judgement, found), strict=False))).verdict


def planted(folder: Path, noise: float = 0.001) -> outcome.Outcome:
    """Method a computes for 1 s and sends 400 Mbit, b computes for 2 s and sends nothing: they cross at 400 Mbit/s."""
    wanted = parsed()
    for cell in wanted.cells:
        for seed in (1, 2, 3):
            computation, sent = (1.0, 4e8) if cell.line == "a" else (2.0, 0.0)
            factor = 1 + noise * (seed - 2) * (1 if cell.line == "a" else -1)
            times = {"computation": computation * factor, "communication": sent / cell.bits * factor}
            write_lab_run(folder / f"cpu/figure0/{cell.name}/seed{seed}", cap=cell.bits, workers=cell.workers, **times)
    return outcome.read(wanted, folder, {})


def test_a_claim_over_bandwidth_is_one_relation_for_each_rate_between_as_many_hosts():
    found = parsed().relations
    assert [(one.of, one.than, one.bits) for one in found] == [(f"a_{name}", f"b_{name}", bits) for name, bits in RATES.items()]
    assert [one.label for one in found] == ["a is faster, at 100 Mbit/s", "a is faster, at 1 Gbit/s", "a is faster, at 10 Gbit/s"]


def test_rates_are_in_ascending_order_and_of_the_hosts_with_most_of_them():
    mixed = {f"{hosts}_{cap}": {"workers": hosts, "cap": cap} for hosts, cap in ((4, "1gbit"), (4, "5mbit"), (2, "1gbit"))}
    for order in (mixed, dict(reversed(mixed.items()))):
        lines = bandwidth.by_rate(parsed(over=order).cells)
        assert {line: {bits: cell.workers for bits, cell in cells.items()} for line, cells in lines.items()} == {
            line: {5 * MEGA: 4, GIGA: 4} for line in "ab"
        }
        assert list(lines["a"]) == [5 * MEGA, GIGA]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"relations": [CLAIM | {"over": "latency"}]}, "over: latency is not known; allowed: bandwidth"),
        ({"relations": [CLAIM | {"than": "c"}]}, "no cell of the lab has the line c; there are a, b"),
        ({"kind": "train", "picture": "scaling"}, "no cell of the lab has the line a; there are none"),
    ],
)
def test_a_claim_over_bandwidth_without_rates_is_refused(content: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        parsed(**content)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((HOLDS,) * 5, "reproduced (at all measured rates, 100 Mbit/s to 10 Gbit/s)"),
        ((OPPOSITE,) * 5, "not reproduced (at all measured rates, 100 Mbit/s to 10 Gbit/s)"),
        ((ALIKE,) * 5, "no significant difference (at all measured rates, 100 Mbit/s to 10 Gbit/s)"),
        ((OPPOSITE, ALIKE, HOLDS, HOLDS, HOLDS),
         "reproduced (1 Gbit/s to 10 Gbit/s); not reproduced (100 Mbit/s); no significant difference (300 Mbit/s)"),
        ((HOLDS, ALIKE, HOLDS, HOLDS, ALIKE),
         "reproduced (100 Mbit/s and 1 Gbit/s to 3 Gbit/s); no significant difference (300 Mbit/s and 10 Gbit/s)"),
        ((HOLDS, OPPOSITE, HOLDS, OPPOSITE, HOLDS),
         "reproduced (100 Mbit/s, 1 Gbit/s and 10 Gbit/s); not reproduced (300 Mbit/s and 3 Gbit/s)"),
        ((verdicts.NOT_RUN, HOLDS, verdicts.CROWDED, HOLDS, HOLDS),
         "reproduced (300 Mbit/s and 3 Gbit/s to 10 Gbit/s); not tested (not run; 100 Mbit/s); "
         "not comparable (more workers than cores; 1 Gbit/s)"),
        ((verdicts.BETTER, HOLDS), "reproduced (at all measured rates, 100 Mbit/s to 300 Mbit/s)"),
        ((HOLDS,), "reproduced (100 Mbit/s)"),
    ],
)  # fmt: skip
def test_a_verdict_names_the_rates_it_is_true_of_gaps_included(found: tuple[str, ...], verdict: str):
    assert over(*found) == verdict


@given(st.lists(st.sampled_from([HOLDS, OPPOSITE, ALIKE]), min_size=2, max_size=5))
def test_every_rate_is_in_exactly_one_range_of_the_verdict(found: list[str]):
    rates = (1.0, 2.0, 3.0, 4.0, 5.0)[: len(found)]
    covered: dict[float, str] = {}
    for part in over(*found, rates=rates).rstrip(")").split("); "):
        kind, _, spans = part.partition(" (")
        for span in spans.removeprefix("at all measured rates, ").replace(" and ", ", ").split(", "):
            low, _, high = span.partition(" to ")
            first, last = (float(text.split()[0]) for text in (low, high or low))
            for rate in rates:
                if first <= rate <= last:
                    assert rate not in covered
                    covered[rate] = kind
    assert [covered[rate] for rate in rates] == found


def test_a_claim_holds_in_the_range_that_was_planted_and_each_rate_is_one_test_of_the_family(tmp_path: Path):
    found = planted(tmp_path)
    p_values = [claim.judgement.p for claim in found.claims]
    (corrected,) = outcome.corrected([found])
    assert len(p_values) == 3
    expected = statistics.holm(dict(enumerate(p_values)))
    assert {place: claim.judgement.corrected_p for place, claim in enumerate(corrected.claims)} == expected
    ((whole, tests),) = bandwidth.collected(corrected.claims)
    assert whole.judgement.verdict == "reproduced (1 Gbit/s to 10 Gbit/s); not reproduced (100 Mbit/s)"
    assert whole.judgement.seeds == (3, 3)
    assert whole.relation.label == "a is faster"
    assert [test.judgement.ratio for test in tests] == pytest.approx([2 / 5, 2 / 1.4, 2 / 1.04], rel=0.01)


def test_the_correction_for_all_claims_can_take_a_rate_out_of_the_range(tmp_path: Path):
    found = planted(tmp_path, noise=0.01)
    many = [replace(found.claims[0], judgement=Judgement(ALIKE, p=1.0)) for _ in range(2000)]
    (corrected,) = outcome.corrected([replace(found, claims=(*found.claims, *many))])
    ((whole, _), *_) = bandwidth.collected(corrected.claims[:3])
    assert whole.judgement.verdict.startswith("no significant difference (")


def test_a_claim_whose_runs_are_all_missing_is_not_run(tmp_path: Path):
    ((whole, _),) = bandwidth.collected(outcome.read(parsed(), tmp_path, {}).claims)
    assert whole.judgement.verdict == verdicts.NOT_RUN


def test_other_claims_are_left_alone(tmp_path: Path):
    plain = {key: value for key, value in CLAIM.items() if key != "over"} | {"of": "a_1gbit", "than": "b_1gbit"}
    found = outcome.read(parsed(relations=[plain, CLAIM, plain]), tmp_path, {}).claims
    assert [len(tests) for _, tests in bandwidth.collected(found)] == [0, 3, 0]
    assert bandwidth.collected(found)[0][0] is found[0]


def test_curves_pass_through_the_points_and_cross_where_they_were_planted(tmp_path: Path):
    found = planted(tmp_path)
    a, b = curves.curves(found)
    assert (a.label, a.measured, b.measured) == ("a", list(RATES.values()), list(RATES.values()))
    assert a.means[GIGA] == pytest.approx(6 * 1.4, rel=1e-5)
    assert a.means[math.inf] == pytest.approx(6 * 1.0, rel=1e-5)  # without its collectives
    for bits in (100 * MEGA, 150 * MEGA, 700 * MEGA, GIGA, 5 * GIGA, 20 * GIGA):
        assert curves.at(a.means, bits) == pytest.approx(6 * (1 + 4e8 / bits), rel=1e-5)
    (crossing,) = curves.crossings([a, b])
    assert (crossing.below, crossing.above, crossing.predicted, crossing.seeds) == ("b", "a", False, 3)
    assert crossing.bits == pytest.approx(400 * MEGA, rel=1e-5)
    of_seeds = sorted(4e8 / (2 * (1 - n) / (1 + n) - 1) for n in (-0.001, 0.0, 0.001))
    assert crossing.of_seeds == pytest.approx(of_seeds)


def test_nothing_is_said_below_the_lowest_rate():
    with pytest.raises(ValueError, match="outside"):
        curves.at({100.0: 2.0, 200.0: 1.0}, 50.0)


def curve(label: str, computation: float, sent: float, rates: tuple[float, ...]) -> Curve:
    return Curve(label, {bits: Sample((computation + sent / bits,)) for bits in (*rates, math.inf)})


positive = st.floats(0.1, 10)


@given(positive, positive, positive, positive)
def test_two_methods_cross_where_the_model_of_their_times_says(fixed: float, further: float, sent: float, more: float):
    a, b = curve("a", fixed, sent + more, (1.0, 3.0, 10.0)), curve("b", fixed + further, sent, (1.0, 3.0, 10.0))
    expected = more / further
    found = curves.crossings([a, b])
    if expected < 0.99:
        assert found == []  # below the lowest rate
    elif expected > 1.01:
        (crossing,) = found
        assert crossing.bits == pytest.approx(expected)
        assert (crossing.below, crossing.above) == ("b", "a")
        if not 9.9 < expected < 10.1:
            assert crossing.predicted == (expected > 10)


@pytest.mark.parametrize(("sent", "predicted"), [(5.0, False), (40.0, True)])
def test_a_crossing_above_the_highest_rate_is_predicted_whatever_the_order_of_the_methods(sent: float, predicted: bool):
    a, b = curve("a", 1.0, sent, (1.0, 3.0, 10.0)), curve("b", 2.0, 0.0, (1.0, 3.0, 10.0))
    for order in ([a, b], [b, a]):
        (crossing,) = curves.crossings(order)
        assert (crossing.below, crossing.above, crossing.predicted) == ("b", "a", predicted)
        assert crossing.bits == pytest.approx(sent)


def test_methods_that_are_equally_fast_at_a_measured_rate_cross_there_and_only_if_they_change_places():
    assert curves.meetings({1.0: 5.0, 2.0: 3.0, 4.0: 1.0}, {1.0: 4.0, 2.0: 3.0, 4.0: 2.0}) == [(2.0, False)]
    assert curves.meetings({1.0: 5.0, 2.0: 3.0, 4.0: 3.0}, {1.0: 4.0, 2.0: 3.0, 4.0: 2.0}) == []
    assert curves.meetings({1.0: 1.0, 2.0: 3.0, 4.0: 1.0}, dict.fromkeys((1.0, 2.0, 4.0), 2.0)) == [
        (pytest.approx(4 / 3), True),
        (pytest.approx(8 / 3), False),
    ]


def test_seeds_that_do_not_cross_are_not_counted_among_those_that_do():
    a = Curve("a", {1.0: Sample((5.0, 5.0)), 4.0: Sample((1.0, 2.4))})
    b = Curve("b", {1.0: Sample((3.0, 3.0)), 4.0: Sample((2.0, 2.0))})
    (crossing,) = curves.crossings([a, b])
    assert (len(crossing.of_seeds), crossing.seeds) == (1, 2)
    backwards = Curve("a", {1.0: Sample((5.0, 2.8)), 4.0: Sample((1.0, 2.4))})  # the second seed changes places the other way
    (crossing,) = curves.crossings([backwards, b])
    assert (len(crossing.of_seeds), crossing.seeds) == (1, 2)


def test_a_speed_up_and_its_interval_are_paired_by_seed():
    fast, slow = Sample((1.0, 2.0, 4.0), (1, 2, 3)), Sample((8.0, 2.2, 4.4), (3, 1, 2))
    value, (low, high) = curves.speedup(Curve("a", {1.0: fast}), Curve("b", {1.0: slow}), 1.0)
    assert value == pytest.approx((2.2 * 2.2 * 2.0) ** (1 / 3))
    assert low < value < high < 2.7
    assert curves.interval(Sample((2.0,))) is None
    assert curves.interval(Sample((2.0, 2.0))) is None


def test_the_kind_of_a_cell_and_its_link_may_depend_on_the_profile():
    own = {"kind": {"paper": "train", "cpu": "lab"}, "cap": {"cpu": "5mbit"}, "relations": []}
    (cell, *_) = tables.parse("figure0", "cpu", {**CONTENT, **own, "over": {"here": {"workers": 2}}}).cells
    assert cell.bits == 5 * MEGA
    (cell, *_) = tables.parse("figure0", "paper", {**CONTENT, **own, "over": {"here": {"workers": 2}}}).cells
    assert not hasattr(cell, "cap")
