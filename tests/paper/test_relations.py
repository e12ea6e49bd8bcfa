"""The kinds of claims: those about counts are decided exactly, and every quantity is read from the right part of a record."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import layers, numbers, outcome, relations, tables, verdicts
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.paper.quantities import QUANTITIES
from pufferfish_bench.paper.relations import Evidence
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.records.files import read_json, write_json
from pufferfish_bench.records.record import Record
from tests.support.records import write_cell, write_counted, write_record, write_run

NUMBERS = paper_numbers()
CLAIM = {"claim": "c", "quantity": "parameters", "of": "one", "is": "lower", "than": "two"}
RESNET18 = {  # as counted
    "resnet18_vanilla_counted": {"parameters": 11_173_834, "macs_as_in_paper": 556_520_448},
    "resnet18_pufferfish_counted": {"parameters": 3_336_138, "macs_as_in_paper": 217_306_112},
}


def counted(of: float, than: float, *, quantity: str = "parameters", paper: float | None = None, **words: str) -> str:
    relation = relations.parse(CLAIM | {"kind": "counted", "quantity": quantity, **words})
    return relation.judge(Evidence(QUANTITIES[quantity], Sample((of,)), Sample((than,)), paper=paper)).verdict


def read(results: Path, name: str, profile: str = "cpu") -> dict[str, outcome.Claim]:
    found = outcome.read(tables.read(name, profile), results / "records", NUMBERS)
    (found,) = outcome.corrected([found])
    return {claim.relation.claim: claim for claim in found.claims}


@given(st.integers(100, 999), st.floats(-0.499, 0.499))
def test_a_number_equals_a_printed_one_if_it_rounds_to_it(printed: int, off: float):
    digits = 3 - (len(str(printed)) - len(str(printed).rstrip("0")))  # zeros at the end of a printed number do not count
    unit = 10 ** (3 - digits)
    assert numbers.digits(printed / 100) == digits
    assert numbers.same_digits((printed + off * unit) / 100, printed / 100)
    for beyond in (0.501, -0.501):  # a unit of the last digit further down, below a power of ten, is smaller
        if printed / unit > 10 ** (digits - 1) or beyond > 0:
            assert not numbers.same_digits((printed + beyond * unit) / 100, printed / 100)


def test_the_digits_of_what_the_paper_prints():
    assert [numbers.digits(number) for number in (3.35, 1.3e6, 0.17, 60.0, 18e6)] == [3, 2, 2, 1, 2]
    assert numbers.same_digits(1_264_443, 1.3e6)
    assert not numbers.same_digits(1_249_999, 1.3e6)


def test_a_ratio_or_difference_of_counts_is_compared_in_all_printed_digits():
    assert counted(3_336_138, 11_173_834, ratio="r", paper=3.35) == verdicts.EQUAL
    assert counted(3_336_138, 11_173_834, ratio="r", paper=3.34) == verdicts.DIFFERENT
    assert counted(16_466_787, 15_202_344, difference="d", paper=1.3e6) == verdicts.EQUAL
    assert counted(15_202_344, 16_466_787, difference="d", paper=1.3e6) == verdicts.DIFFERENT  # the sign counts


def test_a_ratio_that_the_paper_computed_from_rounded_counts_is_named_as_such():
    of, than = 217_306_112, 556_520_448  # 2.561; 0.56 / 0.22 = 2.545
    assert counted(of, than, quantity="macs", ratio="r", paper=2.55) == verdicts.EQUAL_ROUNDED
    assert counted(of, than, quantity="macs", ratio="r", paper=2.56) == verdicts.EQUAL
    assert counted(of, than, quantity="macs", ratio="r", paper=2.54) == verdicts.DIFFERENT
    assert counted(of, than, ratio="r", paper=2.55) == verdicts.DIFFERENT  # parameters are printed in full


def test_without_a_printed_number_the_direction_of_counts_decides_and_equal_is_neither():
    for direction, (of, than) in {"lower": (1, 2), "higher": (2, 1)}.items():
        words = {"is": direction, "quantity": "bytes_per_step"}
        assert counted(of, than, **words) == verdicts.HOLDS
        assert counted(than, of, **words) == counted(of, of, **words) == verdicts.OPPOSITE


def test_the_size_ratios_of_the_text_are_those_of_the_counted_nets(tmp_path: Path):
    for cell, totals in RESNET18.items():
        write_counted(tmp_path, f"cpu/table4/{cell}", **totals)
    found = read(tmp_path, "table4")
    size = found["Pufferfish ResNet-18 is as many times smaller as the paper says"]
    macs = found["Pufferfish ResNet-18 has as many times fewer MACs as the paper says"]
    assert (size.paper, round(size.ours, 4), size.judgement.verdict) == (3.35, 3.3493, verdicts.EQUAL)
    assert (macs.paper, round(macs.ours, 4), macs.judgement.verdict) == (2.55, 2.5610, verdicts.EQUAL_ROUNDED)
    assert size.judgement.p is size.judgement.corrected_p is size.judgement.interval is None  # not in Holm's family
    path = tmp_path / "records/cpu/table4/resnet18_pufferfish_counted/seed1/run.json"
    write_json(path, read_json(path) | {"counted": {"parameters": 3_400_000, "macs_as_in_paper": 230_000_000}})
    assert {found.judgement.verdict for claim, found in read(tmp_path, "table4").items() if "as many" in claim} == {
        verdicts.DIFFERENT
    }


def test_printed_sizes_are_not_compared_with_those_of_narrower_nets_but_their_order_is(tmp_path: Path):
    for profile in ("cpu", "paper"):
        write_cell(tmp_path, f"{profile}/table7/pufferfish", (50.0, 51.0), figures={"parameters": 15_202_344})
        write_cell(tmp_path, f"{profile}/table7/eb_30", (40.0, 41.5), figures={"parameters": 16_466_787})
    fewer, as_many = "Pufferfish has fewer parameters than EB Train at 30 %", "EB Train at 30 % has as many more parameters"
    for profile, verdict in (("cpu", verdicts.OTHER_PROFILE), ("paper", verdicts.EQUAL)):
        found = read(tmp_path, "table7", profile)
        assert found[fewer].judgement.verdict == verdicts.HOLDS
        assert next(claim for words, claim in found.items() if words.startswith(as_many)).judgement.verdict == verdict
    assert read(tmp_path, "table7", "smoke")[fewer].judgement.verdict == verdicts.NOT_RUN


def test_a_claim_may_compare_two_quantities_of_one_cell(tmp_path: Path):
    for seed in (1, 2, 3):
        folder = write_record(tmp_path / f"records/cpu/figure7/sbq/seed{seed}")
        rows = (folder / "epochs.jsonl").read_text().replace('"seconds_forward"', '"seconds_encode"')
        (folder / "epochs.jsonl").write_text(rows.replace('"seconds_backward": 1.0', f'"seconds_decode": {8 + seed / 10}'))
    claim = read(tmp_path, "figure7")["stochastic binary quantisation decodes longer than it encodes"]
    assert (claim.judgement.verdict, claim.judgement.seeds) == (verdicts.HOLDS, (3, 3))
    assert claim.paper == pytest.approx(12.1 / 118.4)
    assert 1 / claim.ours == pytest.approx(8.2, abs=0.01)


def test_the_margin_of_a_time_is_a_share_of_its_ratio():
    """10 % longer and 1 / 1.1 of the time are equally far away, whatever the unit."""

    def judged(ratio: float, unit: float) -> str:
        of, than = [unit * ratio * (1 + noise) for noise in (-1e-4, 0, 2e-4)], [unit] * 3
        found = verdicts.of_relation(Sample(tuple(of)), "lower", Sample(tuple(than)), margin=0.1, share=True, is_time=True)
        return found.verdict

    for unit in (1e-3, 1.0, 1e3):
        assert judged(1.09, unit) == judged(1 / 1.09, unit) == verdicts.HOLDS
        assert judged(1.12, unit) == verdicts.OPPOSITE
        assert judged(1 / 1.12, unit) == verdicts.BETTER


def test_quantities_of_a_step_are_read_from_their_own_sections(tmp_path: Path):
    sections = {"forward": 1.0, "backward": 2.0, "encode": 4.0, "communicate": 8.0, "decode": 16.0, "wait": 32.0, "data": 64.0}
    record = Record.read(write_run(tmp_path / "run", sections=sections, steps=10))
    expected = {"gradient": 30, "encode": 40, "communication": 80, "decode": 160, "coding": 200}
    for name, seconds in expected.items():
        quantity = QUANTITIES[f"{name}_seconds"]
        assert quantity.read(record) == pytest.approx(seconds)
        assert quantity.is_time
    sent = replace(record, run={"summary": {"bytes_per_step": 44_695_336}})
    assert QUANTITIES["bytes_per_step"].read(sent) == 44_695_336
    assert not QUANTITIES["bytes_per_step"].is_time


def test_the_share_of_the_factorisation_is_of_a_full_rank_epoch(tmp_path: Path):
    rows = [
        {"phase": "warmup", "epoch": 0, "seconds": 50.0, "seconds_first_steps": 10.0, "steps": 10, "timed_steps": 8},
        {"phase": "low_rank", "epoch": 1, "seconds": 3.0, "steps": 10, "timed_steps": 10},
    ]
    record = Record(tmp_path, {"operations": [{"seconds": 2.0}]}, tuple(rows))
    assert QUANTITIES["svd_share"].read(record) == pytest.approx(100 * 2 / 50)  # ten steps of 5 seconds
    assert QUANTITIES["svd_share"].read(replace(record, rows=tuple(rows[1:]))) is None  # no epoch at full rank
    assert QUANTITIES["svd_share"].read(replace(record, run={"operations": []})) is None


def test_macs_of_one_lstm_layer_are_the_papers_in_both_ways_of_counting():
    for net, sizes, matrices in (("vanilla", {}, 18_000_000), ("factorised", {"r": 375}, 9_000_000)):
        found = layers.count("lstm", net, {"d": 1500, "h": 1500, **sizes})
        assert (found["macs"], found["macs_as_in_paper"]) == (matrices, matrices + 12 * 1500)
    assert "macs_as_in_paper" not in layers.count("attention", "vanilla", {"p": 2, "d": 4, "N": 3})  # products outside modules


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"kind": "guessed"}, "kind: guessed is not known; allowed: tested, counted"),
        ({"kind": "counted", "margin": 1.0}, "compared exactly: remove margin"),
        ({"marign": 1.0}, "marign: not known; allowed: bits, claim, "),
    ],
)
def test_a_claim_that_cannot_be_read_is_refused(words: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        relations.parse(CLAIM | words)


def test_a_claim_that_the_paper_does_not_make_is_marked():
    assert relations.parse(CLAIM | {"ours": True}).label == "c (ours)"
    assert relations.parse(CLAIM).label == "c"
    ours = {relation.claim for name in tables.names() for relation in tables.read(name, "cpu").relations if relation.is_ours}
    assert {"Pufferfish is more accurate than EB Train at 50 %", "Pufferfish is more accurate than EB Train at 70 %"} <= ours
    assert "Pufferfish is more accurate than EB Train at 30 %" not in ours


def test_every_ratio_that_the_paper_prints_has_a_claim():
    """The numbers of the text, and all speed-ups."""
    claimed = {
        relation.ratio or relation.difference for name in tables.names() for relation in tables.read(name, "paper").relations
    }

    def paths(found: object, path: str = "") -> list[str]:
        if not isinstance(found, dict):
            return [path]
        return [place for key, inner in found.items() for place in paths(inner, f"{path}.{key}".lstrip("."))]

    groups = ("text_ratios", "text_eb_30", "figure4_speedups", "figure5_lth", "figure2_low_rank_convergence")
    printed = [path for group in groups for path in paths(NUMBERS[group], group)]
    speedups = [path for path in paths(NUMBERS) if path.endswith("speedup")]
    conditions = {"batch", "nodes", "batch_per_node", "communication_ratio"}
    missing = [path for path in (*printed, *speedups) if not conditions & set(path.split(".")) and path not in claimed]
    assert missing == []
    assert math.isclose(NUMBERS["figure4_speedups"]["c_ddp_resnet50"]["end_to_end_8_nodes"], 1.64)
