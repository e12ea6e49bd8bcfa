"""The files in conf/table: all that they name is there, and what is read is what is written."""

import functools
import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_method

from pufferfish_bench import main, table
from pufferfish_bench.errors import InputError
from pufferfish_bench.report import describe, numbers
from pufferfish_bench.report.quantities import QUANTITIES
from pufferfish_bench.reproduce import layers
from pufferfish_bench.settings import FOR_OTHERS
from tests.conftest import REPOSITORY

NAMES = table.names()
NUMBERS = numbers.paper_numbers()
CELL = {"overrides": ["model=vgg19"], "figures": {"test_accuracy": None}}


@functools.cache  # tables have runs in common
def identify(overrides: tuple[str, ...]) -> Path:
    ((directory, _),) = main.identify(overrides, [1])
    return directory


def parsed(profile: str = "cpu", **content: Any) -> table.PaperTable:
    return table.parse("table0", profile, {"title": "", "seeds": 1, "cells": {"one": CELL, "two": CELL}} | content)


@pytest.mark.parametrize("profile", table.PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_known_and_every_place_in_the_papers_numbers_holds_a_number(name: str, profile: str):
    wanted = table.read(name, profile)
    for cell in wanted.cells:
        assert cell.figures
        assert set(cell.figures) <= set(QUANTITIES)
        for path in cell.figures.values():
            numbers.paper_number(NUMBERS, path, cell.sizes)
        assert not cell.counted or cell.net in {"describe": describe.NETS, "layer": layers.NETS}[cell.kind]
        assert cell.layer is None or cell.layer in layers.LAYERS
    for relation in wanted.relations:
        assert not relation.margin or "to " in relation.claim  # what is granted is said
        assert not (relation.ratio if not QUANTITIES[relation.quantity].is_time else relation.difference)
        numbers.paper_number(NUMBERS, relation.ratio or relation.difference, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_run_that_exists_and_no_two_are_the_same(name: str):
    trained = [cell for cell in table.read(name, "cpu").cells if not cell.counted]
    directories = [identify((*cell.overrides, f"workers={cell.workers}")) for cell in trained]
    assert len(set(directories)) == len(trained)


@pytest.mark.parametrize("profile", table.PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_takes_the_settings_that_a_cell_gives_it(name: str, profile: str):
    for cell in table.read(name, profile).cells:
        if not cell.counted:
            takes(cell.overrides)


@functools.cache
def takes(overrides: tuple[str, ...]) -> None:
    ((_, settings),) = main.identify(overrides, [1])
    given = {key: value for key, value in settings["dataset"].items() if key not in ("_target_", *FOR_OTHERS)}
    inspect.signature(get_method(settings["dataset"]["_target_"])).bind_partial(**given)


def test_the_low_rank_net_of_table_21_has_the_recipe_without_smoothing_and_last_decay():
    recipes = {}
    for cell in table.read("table21", "paper").cells:
        ((_, settings),) = main.identify(cell.overrides, [1])
        recipes[cell.name] = settings["dataset"]["label_smoothing"], settings["schedule"]["milestones"]
    with_both = (0.1, [30, 60, 80])
    assert recipes == {"low_rank": (0.0, [30, 60]), "hybrid_without_warmup": with_both, "hybrid_with_warmup": with_both}


@pytest.mark.parametrize("profile", ["paper", "cpu"])
def test_all_of_figure_6_has_images_prepared_as_in_the_authors_distributed_code(profile: str):
    for cell in table.read("figure6", profile).cells:
        ((_, settings),) = main.identify(cell.overrides, [1])
        assert (settings["dataset"]["padding"], settings["dataset"]["normalisation"]) == ("zero", "distributed")
    ((_, settings),) = main.identify(["model=resnet18", f"profile={profile}"], [1])
    assert (settings["dataset"]["padding"], settings["dataset"]["normalisation"]) == ("reflect", "paper")


@pytest.mark.parametrize("name", NAMES)
def test_every_file_opens_with_its_command_and_its_hours_and_types_no_number_of_the_paper(name: str):
    text = (REPOSITORY / "conf" / "table" / f"{name}.yaml").read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("# ")
    assert any(f"make {name} PROFILE=" in line for line in head)
    assert any("a seed" in line for line in head)
    wanted = table.read(name, "paper")
    of_cells = [(path, cell.sizes) for cell in wanted.cells for path in cell.figures.values()]
    of_claims = [(relation.ratio or relation.difference, {}) for relation in wanted.relations]
    for number in filter(None, (numbers.paper_number(NUMBERS, *place) for place in of_cells + of_claims)):
        mean = number.mean
        if mean % 1 or mean > 1000:  # 3 is also a number of seeds
            assert not re.search(rf"(?<![\d.]){re.escape(f'{mean:.10g}')}(?![\d.])", text)


def test_tables_come_before_figures_and_by_number():
    assert NAMES.index("table9") < NAMES.index("table19") < NAMES.index("figure2")


def test_a_cell_takes_what_the_table_says_for_all_and_its_profiles_own_words():
    own = {"overrides": ["method=hybrid"], "by_profile": {"cpu": ["epochs=3"]}, "figures": {"seconds": None}, "workers": 4}
    common = {"common": ["model=vgg19"], "by_profile": {"cpu": ["batch_size=8"]}, "figures": {"test_loss": None}}
    (cell,) = parsed(cells={"one": own}, workers={"cpu": 2}, **common).cells
    assert cell.overrides == ("model=vgg19", "method=hybrid", "batch_size=8", "epochs=3", "profile=cpu")
    assert (list(cell.figures), cell.workers) == (["test_loss", "seconds"], 4)
    (cell,) = parsed("smoke", cells={"one": own | {"workers": {"smoke": 2}}}, **common).cells
    assert (cell.overrides, cell.workers) == (("model=vgg19", "method=hybrid", "profile=smoke"), 2)


def test_a_margin_is_a_number_or_a_share_and_absent_none_at_all():
    claim = {"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "lower", "than": "two"}
    for words, expected in (({}, (0.0, False)), ({"margin": 1.5}, (1.5, False)), ({"margin": "2 %"}, (0.02, True))):
        (relation,) = parsed(relations=[claim | words]).relations
        assert (relation.margin, relation.margin_is_share) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"relations": [{"claim": "c", "quantity": "test_loss", "of": "one", "is": "lower", "than": "two"}]}, "no cell has"),
        ({"relations": [{"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "lower", "than": "2"}]}, "no cell has"),
        ({"relations": [{"claim": "c", "quantity": "test_accuracy", "of": "one", "is": "near", "than": "two"}]}, "is: near"),
        ({"cells": {"one": CELL | {"kind": "trian"}}}, "kind: trian"),
        ({"picture": "pie"}, "picture: pie is not known"),
        ({"picture": "sweep"}, "add sweep: {setting"),
        ({"picture": "sweep", "sweep": {"setting": "epochs", "label": ""}}, "one has no number.*add epochs="),
        ({"picture": "sweep", "sweep": {"setting": "profile", "label": ""}}, "one has no number"),
        ({"picture": "scaling"}, "one, two has no line"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(content: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        parsed(**content)


def test_a_run_that_tells_waiting_apart_is_another_and_its_settings_say_so():
    (plain, without), (waits, settings) = (main.identify([f"measure_wait={asked}"], [1])[0] for asked in ("false", "true"))
    assert plain != waits
    assert (without["reducer"]["measure_wait"], settings["reducer"]["measure_wait"]) == (False, True)
    assert without.keys() == settings.keys()
    assert "measure_wait" not in settings  # said once


def test_a_word_of_a_cell_that_no_config_knows_is_an_error_of_the_users():
    with pytest.raises(InputError, match="vgg20"):
        main.identify(["model=vgg20"], [1])


def test_what_is_not_known_is_named_with_what_is(tmp_path: Path):
    with pytest.raises(InputError, match="there is no 'table99'; there are table1, "):
        table.read("table99", "cpu")
    with pytest.raises(InputError, match="profile=gpu is not known; allowed: paper, cpu, smoke"):
        table.read("table4", "gpu")
    with pytest.raises(InputError, match=r"no table4_cifar10\.vgg20"):
        numbers.paper_number(NUMBERS, "table4_cifar10.vgg20", {})
    with pytest.raises(InputError, match=r"needs the size r: there are m, n"):
        numbers.paper_number(NUMBERS, "table1_complexity.fc.factorised.params", {"m": 2, "n": 3})


def words_of(*arguments: str) -> list[str]:
    """The words by which make would run a target."""
    planned = subprocess.run(["make", "-n", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True)
    last = planned.stdout.replace("\\\n", " ").split("pufferfish_bench.reproduce ")[-1]
    return shlex.split(last.splitlines()[0])


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure_is_a_target(name: str):
    assert words_of(name) == ["--profile", "cpu", name]


def test_what_make_is_told_reaches_the_runner():
    told = words_of("table4", "PROFILE=paper", "SEEDS=2", "CONFIRM=1", "PROBE=0", "CELLS=*fp32 vgg*")
    assert " ".join(told) == "--profile paper --seeds 2 --confirm --no-probe --cells *fp32 --cells vgg* table4"
    assert words_of("table4", "PROFILE=paper", "CONFIRM=0", "PROBE=1") == ["--profile", "paper", "table4"]


def test_all_tables_and_all_figures_are_targets_too():
    assert {name for target in ("tables", "figures") for name in words_of(target)[2:]} == set(NAMES)
