"""Config folders of the user's own: --config-dir and PUFFERFISH_CONF."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import describe
from pufferfish_bench.config import command_line
from pufferfish_bench.config.build import composed
from pufferfish_bench.paper import tables
from pufferfish_bench.report.reproduction import read_outcomes
from tests.support.commands import Command
from tests.support.repository import REPOSITORY

MODEL = "defaults: [base/resnet18@_here_, /recipe/cifar10@_global_: '${profile}']\n"
TABLE = "title: Mine\nseeds: 1\ncells: {one: {overrides: [model=mine], figures: {test_accuracy: null}}}\n"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders, with a model in the first and a schedule and a table in the second."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "one/model/mine.yaml": MODEL,
        "two/schedule/mine.yaml": "_target_: pufferfish_bench.training.schedules.cosine\n_partial_: true\n"
        "learning_rate: 0.3\nepochs: ${epochs}\nrise: 0.5\n",
        "two/table/mine.yaml": TABLE,
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("PUFFERFISH_CONF", os.pathsep.join(["one", "two"]))
    return [tmp_path / "one", tmp_path / "two"]


def test_all_folders_are_used_by_every_command(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    config = composed(["model=mine", "schedule=mine", "profile=smoke"])
    assert (config.model.net.stem_norm, config.schedule.rise) == (False, 0.5)
    monkeypatch.setattr(sys, "argv", ["pufferfish-describe", "model=mine"])
    describe.run()
    assert "mine: full rank" in capsys.readouterr().out


def test_own_tables_come_after_the_papers(folders: list[Path]):
    assert tables.names() == [*tables.papers(), "mine"]
    assert tables.read("mine", "smoke").title == "Mine"
    assert "mine" not in tables.papers()


def test_without_the_variable_there_is_nothing_of_ones_own(folders: list[Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUFFERFISH_CONF", "")
    assert tables.names() == tables.papers()
    with pytest.raises(InputError, match="model=mine is not known"):
        composed(["model=mine"])


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_folder_that_is_missing_or_repeats_a_name_is_refused(invoke: Command, tmp_path: Path, monkeypatch, by_variable: bool):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "vgg19.yaml").write_text(MODEL)
    for folder, sentence in (("nowhere", "there is no such folder"), ("own", "has the name of a file of this package")):
        if by_variable:
            monkeypatch.setenv("PUFFERFISH_CONF", folder)
        refused = invoke(*(() if by_variable else ("--config-dir", folder)), "profile=smoke")
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_claims_of_own_tables_do_not_change_the_verdicts_on_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("table6", "mine"):
        shutil.copytree(REPOSITORY / "results" / "records" / "cpu" / "table6", tmp_path / "records" / "cpu" / name)
    (tmp_path / "own" / "table").mkdir(parents=True)
    shutil.copy(REPOSITORY / "conf" / "table" / "table6.yaml", tmp_path / "own" / "table" / "mine.yaml")
    before = {found.table.name: found.claims for found in read_outcomes("cpu", tmp_path)}
    monkeypatch.setenv("PUFFERFISH_CONF", str(tmp_path / "own"))
    after = {found.table.name: found.claims for found in read_outcomes("cpu", tmp_path)}
    own = after.pop("mine")
    corrected = [claim.judgement.corrected_p for claim in own if claim.judgement.p is not None]
    assert corrected
    assert corrected == [claim.judgement.corrected_p for claim in after["table6"] if claim.judgement.p is not None]
    assert after == before


def test_two_own_files_of_the_same_name_are_refused(folders: list[Path], monkeypatch: pytest.MonkeyPatch):
    (folders[1] / "model").mkdir()
    (folders[1] / "model" / "mine.yaml").write_text(MODEL)
    with pytest.raises(InputError, match="only one of them would be used: rename it"):
        composed(["model=mine", "profile=smoke"])
    monkeypatch.setenv("PUFFERFISH_CONF", "one")
    composed(["model=mine", "profile=smoke"])
    with pytest.raises(InputError, match="only one of them would be used: rename it"):
        command_line.check_words(["--config-dir", "two", "model=mine"])


def test_a_config_file_that_is_not_yaml_is_named(folders: list[Path]):
    (folders[0] / "model" / "broken.yaml").write_text("net: {a: 1\nx: [")
    with pytest.raises(InputError, match=r"broken\.yaml is not valid YAML: "):
        composed(["model=broken", "profile=smoke"])
