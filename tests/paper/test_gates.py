"""Gates: runs that could not show a claim about quality leave it untested."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import gates, outcome, tables, verdicts
from pufferfish_bench.paper.gates import Gates
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.records.record import Record
from tests.support.records import ablation, write_record

LIMITS = {"train_accuracy": 97.0, "levelled": 0.02, "energy": 0.5, "compression_factor": 1.5}
OWN = {"vanilla": "full", "low_rank": "small", "model": "resnet18", **LIMITS}
GATES = Gates.parse("resnet18", OWN, paper_numbers()["models"])


def record(
    *, losses: tuple = (1.0, 0.5), accuracy: float | None = None, parameters: int = 1000, layers: Mapping[str, Any] | None = None
) -> Record:
    summary = {"parameters": parameters} | ({} if accuracy is None else {"train_accuracy": accuracy})
    operations = [] if layers is None else [{"layers": layers}]
    rows = [{"epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses)]
    return Record(Path("nowhere"), {"summary": summary, "operations": operations}, rows)


def layer(energy: float, random: float) -> dict[str, float]:
    return {"rank": 4, "energy": energy, "random_energy": random, "seconds": 0.1}


def test_the_papers_compression_comes_from_its_counts():
    assert GATES.compression == pytest.approx(3.35, abs=0.005)


@given(st.floats(0, 100))
def test_vanilla_fits_from_the_stated_training_accuracy_on(accuracy: float):
    assert (GATES.fits([record(accuracy=accuracy)]).failure == "") == (accuracy >= 97)


@given(st.floats(-0.5, 0.5), st.integers(1, 5))
def test_or_if_its_loss_has_levelled_off(fall: float, tenths: int):
    """The loss of the last tenth of the epochs against the tenth before; what was before does not matter."""
    losses = (9.0,) * 8 * tenths + (1.0,) * tenths + (1 - fall,) * tenths
    assert gates.loss_fall(record(losses=losses)) == pytest.approx(fall)
    found = GATES.fits([record(losses=losses, accuracy=50.0)])
    assert (found.failure == "") == (gates.loss_fall(record(losses=losses)) < 0.02)


def test_all_seeds_count_and_one_without_the_figure_counts_as_not_recorded():
    assert GATES.fits([record(accuracy=96.0), record(accuracy=98.1)]).failure == ""
    assert GATES.fits([record(accuracy=96.0), record(accuracy=97.9)]).failure == "vanilla underfits"
    assert GATES.fits([record(accuracy=99.0), record()]).failure == "vanilla underfits"
    assert GATES.fits([record(losses=(1.0,))]).measured == "not recorded"
    without = replace(GATES, train_accuracy=None)  # a language model: its loss decides
    assert without.fits([record(accuracy=99.0)]).failure == "vanilla underfits"
    assert without.fits([record(losses=(1.0, 0.99))]).failure == ""


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_mean_energy_is_halfway_from_random_to_one(energy: float, random: float):
    found = GATES.keeps([record(layers={"a": layer(energy, random), "b": layer(energy, random)})], 0.5)
    assert (found.failure == "") == (energy >= random + 0.5 * (1 - random))
    if not found.failure:
        assert energy >= 0.5


def test_energies_are_averaged_over_layers_and_must_be_recorded():
    assert GATES.keeps([record(layers={"a": layer(0.9, 0.4), "b": layer(0.5, 0.4)})], 0.5).failure == ""
    assert GATES.keeps([record(layers={"a": layer(0.8, 0.4), "b": layer(0.5, 0.4)})], 0.5).failure == "the SVD cuts noise"
    old = {"rank": 4, "energy": 0.9, "seconds": 0.1}
    for layers in ({"a": layer(0.9, 0.4), "b": old}, {}, {"a": {"rank": 4}}, None):
        assert GATES.keeps([record(layers=layers)], 0.5).failure == "kept energy not recorded"


@pytest.mark.parametrize(("smaller", "holds"), [(2.2, False), (2.3, True), (3.35, True), (5.0, True), (5.1, False)])
def test_compression_is_within_the_factor_on_both_sides(smaller: float, holds: bool):
    found = GATES.compresses([record(parameters=100_000)], [record(parameters=round(100_000 / smaller))])
    assert (found.failure == "") == holds


def test_without_one_of_the_cells_there_is_nothing_to_measure():
    assert GATES.findings({"full": [record()], "small": []}) == []


def test_a_claim_whose_gates_cannot_be_measured_is_not_tested(tmp_path: Path):
    """Table 8 without its vanilla net, which is no end of its claims."""
    shutil.rmtree(ablation(tmp_path) / "records/cpu/table8/vanilla")
    found = outcome.read(tables.read("table8", "cpu"), tmp_path / "records", paper_numbers())
    assert {claim.judgement.verdict for claim in found.claims} == {"not tested (a run that the gates need is missing)"}


def test_without_an_svd_there_is_no_gate_on_its_energy_and_the_net_may_be_low_rank_throughout():
    own = OWN | {"energy": None, "net": "low_rank"}
    found = Gates.parse("resnet18", own, paper_numbers()["models"])
    assert found.compression == pytest.approx(11_173_834 / 3_282_890)
    records = {"full": [record(parameters=3400, accuracy=99.0)], "small": [record(parameters=1000)]}
    assert [finding.failure for finding in found.findings(records)] == ["", ""]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "resnet19"}, "resnet19 has no parameter counts"),
        ({"levels": 1}, "missing or unknown: levels"),
    ],
)
def test_a_mistake_in_a_table_is_explained(changes: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        Gates.parse("resnet18", OWN | changes, paper_numbers()["models"])


def test_a_table_cannot_name_gates_or_cells_that_it_does_not_have():
    cells = {name: {"overrides": ["model=resnet18"], "figures": {"test_accuracy": None}} for name in ("full", "small")}
    claim = {"claim": "it is as good", "quantity": "test_accuracy", "of": "small", "is": "higher", "than": "full"}
    content = {
        "title": "A table",
        "seeds": 1,
        "cells": cells,
        "gates": {"resnet18": OWN},
        "relations": [claim | {"gates": "resnet18"}],
    }
    assert tables.parse("table99", "cpu", content).gates["resnet18"] == GATES
    with pytest.raises(InputError, match="names gates: vgg19; there are resnet18"):
        tables.parse("table99", "cpu", content | {"relations": [claim | {"gates": "vgg19"}]})
    with pytest.raises(InputError, match="there is no cell tiny"):
        tables.parse("table99", "cpu", content | {"gates": {"resnet18": OWN | {"low_rank": "tiny"}}})


def test_a_claim_whose_gates_fail_is_not_tested_and_is_not_counted_in_the_correction(tmp_path: Path):
    """The same runs decide the claim if the gates hold."""
    for seed in (1, 2, 3):
        for cell, accuracy, parameters in (("vanilla", 90.0, 1000), ("pufferfish", 90.0 + 0.1 * seed**2, 400)):
            place = tmp_path / f"cpu/figure5/{cell}/seed{seed}"
            write_record(place, values=(accuracy,), figures={"parameters": parameters, "train_accuracy": 99.0})
        write_record(tmp_path / f"cpu/figure5/lth/seed{seed}", values=(90.0,))
    table = tables.read("figure5", "cpu")
    found = outcome.read(table, tmp_path, paper_numbers())
    assert found.claims[0].judgement.verdict == "not tested (kept energy not recorded)"
    assert found.claims[0].judgement.p is None
    assert found.claims[0].judgement.interval is not None
    (corrected,) = outcome.corrected([found])
    assert corrected.claims[0].judgement.corrected_p is None
    ungated = replace(table, relations=tuple(replace(relation, gates=None) for relation in table.relations))
    assert outcome.read(ungated, tmp_path, paper_numbers()).claims[0].judgement.verdict in (verdicts.HOLDS, verdicts.ALIKE)
