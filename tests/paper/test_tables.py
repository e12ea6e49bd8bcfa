"""The files in conf/table: everything they refer to exists, and they are read as they are written."""

import functools
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_method

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import build
from pufferfish_bench.paper import layers, model_counts, numbers, tables
from pufferfish_bench.paper.cells import BudgetRun, LayerCount, ModelCount, TrainRun
from pufferfish_bench.paper.quantities import QUANTITIES
from tests.support.repository import REPOSITORY

NAMES = tables.names()
NUMBERS = numbers.paper_numbers()
CELL = {"overrides": ["model=vgg19"], "figures": {"test_accuracy": None}}


def parsed(profile: str = "cpu", **content: Any) -> tables.PaperTable:
    return tables.parse("table0", profile, {"title": "", "seeds": 1, "cells": {"one": CELL, "two": CELL}} | content)


@pytest.mark.parametrize("profile", tables.PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_quantity_is_known_and_every_key_of_the_papers_numbers_exists(name: str, profile: str):
    wanted = tables.read(name, profile)
    for cell in wanted.cells:
        assert cell.figures or cell.lines
        assert set(cell.figures) <= set(QUANTITIES)
        for path in cell.figures.values():
            numbers.paper_number(NUMBERS, path, cell.sizes)
        if isinstance(cell, ModelCount):
            assert cell.net in model_counts.NETS
        if isinstance(cell, LayerCount):
            assert cell.net in layers.NETS
            assert cell.layer in layers.LAYERS
    for relation in wanted.relations:
        assert not relation.margin or "within " in relation.claim  # the claim states its margin
        assert not (relation.difference if relation.is_ratio(QUANTITIES[relation.quantity]) else relation.ratio)
        numbers.paper_number(NUMBERS, relation.ratio or relation.difference, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_run_that_exists_and_no_two_are_the_same(name: str):
    jobs = [job for job in tables.read(name, "cpu").jobs(1, Path()) if job.cell.has_seeds]
    # budgets of a short recipe may round to the same epochs (tests/paper/test_budget.py)
    names = {(job.cell.line, job.settings["epochs"]) if isinstance(job.cell, BudgetRun) else job.cell.name for job in jobs}
    assert len({job.directory for job in jobs}) == len(names)


@pytest.mark.parametrize("profile", tables.PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_takes_the_settings_that_a_cell_gives_it(name: str, profile: str):
    for cell in tables.read(name, profile).cells:
        if isinstance(cell, TrainRun):
            takes(cell.overrides)


@functools.cache
def takes(overrides: tuple[str, ...]) -> None:
    ((_, settings),) = build.identify(overrides, [1])
    given = {key: value for key, value in settings["dataset"].items() if key != "_target_"}
    inspect.signature(get_method(settings["dataset"]["_target_"])).bind_partial(**given)


def test_the_low_rank_net_of_table_21_has_the_recipe_without_smoothing_and_last_decay():
    recipes = {}
    for cell in tables.read("table21", "paper").cells:
        ((_, settings),) = build.identify(cell.overrides, [1])
        recipes[cell.name] = settings["dataset"]["label_smoothing"], settings["schedule"]["milestones"]
    with_both = (0.1, [30, 60, 80])
    others = dict.fromkeys(("vanilla", "hybrid_without_warmup", "hybrid_with_warmup"), with_both)
    assert recipes == {"low_rank": (0.0, [30, 60]), **others}


@pytest.mark.parametrize("profile", ["paper", "cpu"])
def test_all_of_figure_6_has_images_prepared_as_in_the_authors_distributed_code(profile: str):
    for cell in tables.read("figure6", profile).cells:
        ((_, settings),) = build.identify(cell.overrides, [1])
        assert (settings["dataset"]["padding"], settings["dataset"]["normalisation"]) == ("zero", "distributed")
    ((_, settings),) = build.identify(["model=resnet18", f"profile={profile}"], [1])
    assert (settings["dataset"]["padding"], settings["dataset"]["normalisation"]) == ("reflect", "paper")


@pytest.mark.parametrize("name", NAMES)
def test_every_file_opens_with_its_command_and_its_hours_and_types_no_number_of_the_paper(name: str):
    text = (REPOSITORY / "conf" / "table" / f"{name}.yaml").read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("# ")
    assert any(f"make {name} PROFILE=" in line for line in head)
    assert any("per seed" in line for line in head)
    wanted = tables.read(name, "paper")
    of_cells = [(path, cell.sizes) for cell in wanted.cells for path in cell.figures.values()]
    of_claims = [(relation.ratio or relation.difference, {}) for relation in wanted.relations]
    for number in filter(None, (numbers.paper_number(NUMBERS, *place) for place in of_cells + of_claims)):
        mean = number.mean
        if mean % 1 or mean > 1000:  # 3 is also a number of seeds
            assert not re.search(rf"(?<![\d.]){re.escape(f'{mean:.10g}')}(?![\d.])", text)


def test_tables_come_before_figures_and_by_number():
    assert NAMES.index("table9") < NAMES.index("table19") < NAMES.index("figure2")
    assert NAMES[-2:] == ["figure_budget", "figure_demo"]  # have no number


def test_a_cell_has_the_settings_of_its_table_and_of_its_profile():
    own = {"overrides": ["method=hybrid"], "by_profile": {"cpu": ["epochs=3"]}, "figures": {"seconds": None}, "workers": 4}
    common = {"common": ["model=vgg19"], "by_profile": {"cpu": ["batch_size=8"]}, "figures": {"test_loss": None}}
    (cell,) = parsed(cells={"one": own}, workers={"cpu": 2}, **common).cells
    assert cell.overrides == ("model=vgg19", "method=hybrid", "batch_size=8", "epochs=3", "profile=cpu")
    assert (list(cell.figures), cell.workers) == (["test_loss", "seconds"], 4)
    (cell,) = parsed("smoke", cells={"one": own | {"workers": {"smoke": 2}}}, **common).cells
    assert (cell.overrides, cell.workers) == (("model=vgg19", "method=hybrid", "profile=smoke"), 2)


def test_a_margin_is_a_number_or_a_percentage_and_defaults_to_zero():
    claim = {"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "lower", "than": "two"}
    for words, expected in (({}, (0.0, False)), ({"margin": 1.5}, (1.5, False)), ({"margin": "2 %"}, (0.02, True))):
        (relation,) = parsed(relations=[claim | words]).relations
        assert (relation.margin, relation.margin_is_share) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"relations": [{"claim": "c", "quantity": "test_loss", "of": "one", "is": "lower", "than": "two"}]}, "no cell has that"),
        ({"relations": [{"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "lower", "than": "2"}]}, "no cell has"),
        ({"relations": [{"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "near", "than": "two"}]}, "is: near"),
        ({"cells": {"one": CELL | {"kind": "trian"}}}, "kind: trian"),
        ({"picture": "pie"}, "picture: pie is not known"),
        ({"picture": "sweep"}, "add sweep: {setting"),
        ({"picture": "sweep", "sweep": {"setting": "epochs", "label": ""}}, "one has no number.*add epochs="),
        ({"picture": "sweep", "sweep": {"setting": "profile", "label": ""}}, "one has no number"),
        ({"picture": "sweep", "sweep": {"setting": "model", "label": "", "reference": "three"}}, "there is no cell three"),
        ({"picture": "scaling"}, "each of one, two is run with"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(content: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        parsed(**content)


def test_measure_wait_is_part_of_a_runs_identity():
    (plain, without), (waits, settings) = (build.identify([f"measure_wait={asked}"], [1])[0] for asked in ("false", "true"))
    assert plain != waits
    assert (without["reducer"]["measure_wait"], settings["reducer"]["measure_wait"]) == (False, True)
    assert without.keys() == settings.keys()
    assert "measure_wait" not in settings  # it is in the reducer's settings only


def test_an_unknown_override_of_a_cell_is_an_input_error():
    with pytest.raises(InputError, match="vgg20"):
        build.identify(["model=vgg20"], [1])


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path):
    with pytest.raises(InputError, match=r"table or figure 'table99' is not known \(did you mean table9"):
        tables.read("table99", "cpu")
    with pytest.raises(InputError, match=r"profile=gpu is not known.*; allowed: paper, cpu, smoke"):
        tables.read("table4", "gpu")
    with pytest.raises(InputError, match=r"no table4_cifar10\.vgg20"):
        numbers.paper_number(NUMBERS, "table4_cifar10.vgg20", {})
    with pytest.raises(InputError, match=r"needs the size r; given: m, n"):
        numbers.paper_number(NUMBERS, "table1_complexity.fc.factorised.params", {"m": 2, "n": 3})


def words_of(*arguments: str) -> list[str]:
    """The arguments with which make would start the runner for a target."""
    planned = subprocess.run(["make", "-n", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True)
    last = planned.stdout.replace("\\\n", " ").split("pufferfish_bench.cli.reproduce ")[-1]
    return shlex.split(last.splitlines()[0])


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_is_a_target(name: str):
    assert words_of(name) == ["--profile", "cpu", name]


def test_variables_of_make_reach_the_runner():
    told = words_of("table4", "PROFILE=paper", "SEEDS=2", "CONFIRM=1", "PROBE=0", "CELLS=*fp32 vgg*")
    assert " ".join(told) == "--profile paper --seeds 2 --confirm --no-probe --cells *fp32 --cells vgg* table4"
    assert words_of("table4", "PROFILE=paper", "CONFIRM=0", "PROBE=1") == ["--profile", "paper", "table4"]


def test_make_refuses_a_variable_that_no_table_has():
    words = ["make", "-n", "-C", str(REPOSITORY), "table4", "PROFIL=cpu", "CELLS=a b", "PUFFERFISH_DATA=data", "SEED=1"]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2
    assert re.search(r"unknown: (PROFIL SEED|SEED PROFIL); variables of tables and figures are PROFILE SEEDS ", refused.stderr)
    assert subprocess.run(["make", "-n", "-C", str(REPOSITORY), "lint", "X=1"], capture_output=True).returncode == 0
    assert words_of("table4", "PUFFERFISH_DATA=data") == ["--profile", "cpu", "table4"]


def test_tables_and_figures_are_targets_for_all_of_them():
    assert {name for target in ("tables", "figures") for name in words_of(target)[2:]} == set(NAMES)
    assert words_of("figure-budget") == words_of("figure_budget")


def test_cells_are_run_with_every_entry_of_over():
    cells = {"a": {"overrides": ["method=vanilla"]}, "b": {"overrides": ["method=hybrid"]}}
    over = {"one": {"workers": 2}, "two": {"overrides": ["epochs=3"]}}
    found = parsed(cells=cells, over=over, figures={"seconds": None}, profile="paper").cells
    assert [(cell.name, cell.line, cell.workers) for cell in found] == [
        ("a_one", "a", 2), ("b_one", "b", 2), ("a_two", "a", 1), ("b_two", "b", 1)
    ]  # fmt: skip
    assert found[3].overrides == ("method=hybrid", "epochs=3", "profile=paper")


def parameters(overrides: tuple[str, ...], net: str) -> int:
    """The parameters of a run's model, vanilla or hybrid."""
    words = [word for word in overrides if not word.startswith(("method=", "profile=", "precision="))]
    profile = next(word for word in overrides if word.startswith("profile="))
    return model_counts.describe(**build.described([*words, profile]), as_in_paper=False)["totals"][net]["parameters"]


@pytest.mark.parametrize(("profile", "tolerance"), [("paper", 0.02), ("cpu", 0.02), ("smoke", 0.1)])
@pytest.mark.parametrize("name", ["table2", "table3", "table4", "table5"])
def test_a_narrow_vanilla_net_has_the_parameters_of_the_pufferfish_net(name: str, profile: str, tolerance: float):
    table = tables.read(name, profile)
    narrow = [cell for cell in table.cells if isinstance(cell, TrainRun) and "narrow" in cell.name]
    assert narrow
    for cell in narrow:
        prefix = cell.name.rpartition("narrow")[0]
        partner = table.cell(cell.name.replace(f"{prefix}narrow", f"{prefix.removesuffix('vanilla_')}pufferfish"))
        assert parameters(cell.overrides, "vanilla") == pytest.approx(parameters(partner.overrides, "hybrid"), rel=tolerance)
