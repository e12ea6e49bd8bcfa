"""Dry runs of the paper's tables: every cell has its place or is named with what to do, whatever the number of GPUs."""

import re

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import reproduce
from pufferfish_bench.paper import placing, tables
from pufferfish_bench.paper.cells import LabRun, TrainRun
from tests.support.repository import REPOSITORY

PAPERS = tables.papers()
HEAD = re.compile(r"# [^\n]*?about (\d+) (hours?|minutes) per seed|under (an) (hour) per seed")


def trained(name: str, profile: str = "paper") -> list[TrainRun]:
    return [cell for cell in tables.read(name, profile).cells if cell.has_seeds]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PAPERS)
def test_the_hours_of_the_runs_are_those_that_the_table_announces(name: str):
    cells = trained(name)
    assert all(cell.hours and cell.hours > 0 for cell in cells)
    assert all(cell.hours is None for profile in ("cpu", "smoke") for cell in trained(name, profile))
    announced = [found for found in HEAD.findall((REPOSITORY / "conf/table" / f"{name}.yaml").read_text()) if any(found)]
    if not cells:
        return
    number, unit, an, _ = announced[0]
    hours = 1.0 if an else int(number) * (1 / 60 if unit == "minutes" else 1)
    total = sum(cell.hours for cell in cells if (name, cell.name) != ("table19", "resnet50_imagenet"))  # announced apart
    assert total == pytest.approx(hours, rel=0.3)


TABLES = [name for name in PAPERS if name.startswith("table")]


@pytest.mark.xdist_group("plans")  # composes the settings of all tables once
@pytest.mark.parametrize(
    ("gpus", "workers", "wanted"), [(1, 1, TABLES), (8, 8, ["table2", "table4", "table19"]), (16, None, TABLES)]
)
def test_every_cell_of_the_tables_can_be_placed(gpus: int, workers: int | None, wanted: list[str], capsys: pytest.CaptureFixture):
    own = ["--workers", str(workers)] if workers else []
    assert reproduce.main([*wanted, "--profile", "paper", "--seeds", "1", "--dry-run", "--gpus", str(gpus), *own]) == 0
    said = capsys.readouterr().out
    assert "CANNOT" not in said
    runs, placed = re.search(r"total: (\d+) runs to train, (\d+) can be placed", said).groups()
    assert runs == placed
    if workers == 8:
        kept = re.search("WORKERS=8 does not change (.*): no global batch", said)[1]
        assert "table2/vanilla (1)" in kept  # its batch of 20 cannot be shared by 8
        assert "table19/resnet50 (1)" in kept
        assert "table4" not in kept


def test_a_cell_that_does_not_fit_is_named_with_what_to_do(capsys: pytest.CaptureFixture):
    assert reproduce.main(["table19", "figure4c", "--profile", "paper", "--seeds", "1", "--dry-run", "--gpus", "8"]) == 0
    said = capsys.readouterr().out.splitlines()
    first, second = (line for line in said if line.startswith("cannot be placed here"))
    assert "table19: resnet50_imagenet: 16 GPUs are needed and there are 8" in first
    assert "MAX_WORKERS=8 trains at the global batch of 256 on 8 of them" in first
    assert "figure4c: vanilla_16, pufferfish_16" in second
    assert "WORKERS" not in second  # its batch is per worker


def test_with_at_most_as_many_workers_as_gpus_every_cell_of_the_tables_can_be_placed(capsys: pytest.CaptureFixture):
    names = [name for name in tables.names() if name.startswith("table")]
    for gpus in (1, 8, 16):
        words = [*names, "--profile", "paper", "--seeds", "1", "--dry-run", "--gpus", str(gpus), "--max-workers", str(gpus)]
        assert reproduce.main(words) == 0
        said = capsys.readouterr().out
        assert "cannot be placed" not in said.lower()
        assert ("table19/resnet50_imagenet (16 to " in said) == (gpus < 16)
        changed = next(line for line in said.splitlines() if line.startswith(f"MAX_WORKERS={gpus}"))
        assert "table4" not in changed  # a cell of one worker stays as the paper has it


def test_workers_that_change_are_named(capsys: pytest.CaptureFixture):
    words = ["table4", "--profile", "paper", "--cells", "resnet18_vanilla_fp32", "--seeds", "1", "--dry-run", "--gpus", "8"]
    assert reproduce.main([*words, "--workers", "8"]) == 0
    said = capsys.readouterr().out
    assert "WORKERS=8 changes the workers, at the same global batch, of table4/resnet18_vanilla_fp32 (1 to 8)" in said


def test_the_plan_of_a_cluster_has_a_line_for_each_array(capsys: pytest.CaptureFixture):
    words = ["table4", "table19", "--profile=paper", "--seeds=3", "--dry-run", "--launcher=slurm", "--gpus-per-node", "8"]
    assert reproduce.main(words) == 0
    said = capsys.readouterr().out
    assert "  table4/resnet18_vanilla_fp32: 3 jobs of 1 node, 1 GPU on each, " in said
    assert "  table19/resnet50_imagenet: 3 jobs of 2 nodes, 8 GPUs on each, " in said
    assert reproduce.main([*words[:-1], "0"]) == 0
    assert "2 nodes" not in capsys.readouterr().out


def test_a_plan_without_estimates_names_no_hours(capsys: pytest.CaptureFixture):
    assert reproduce.main(["table8", "--profile", "smoke", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "can be placed here; the tables have no hours for this profile" in said
    assert " h," not in said
    assert "0.0" not in said


def test_other_workers_keep_the_global_batch_and_the_work():
    cell = next(cell for cell in trained("figure4a") if cell.name == "vanilla")
    other = cell.with_workers(4)
    if cell.global_batch is None:
        pytest.fail("the recipe has a global batch")
    settings = [one.identity([1])[0].settings for one in (cell, other)]
    assert [one["batch_size"] * one["workers"] for one in settings] == [cell.global_batch] * 2
    assert other.hours * other.workers == pytest.approx(cell.hours * cell.workers)
    assert {key for key in settings[0] if settings[0][key] != settings[1][key]} <= {"batch_size", "workers", "name", "dataset"}
    with pytest.raises(InputError, match="WORKERS=3: vanilla has a global batch of 256; use a divisor of it"):
        cell.with_workers(3)


def test_figure_4b_measures_gpus_under_the_papers_profile_and_the_lab_elsewhere():
    real = trained("figure4b")
    assert not any(isinstance(cell, LabRun) for cell in real)
    assert {cell.workers for cell in real} == {8}
    assert {cell.global_batch for cell in real} == {2048}
    for profile in ("cpu", "smoke"):
        assert all(isinstance(cell, LabRun) for cell in trained("figure4b", profile))
    assert all(cell.with_workers(8) is cell for cell in trained("figure4b", "cpu"))  # hosts of the lab


def test_gpus_are_pretended_only_in_a_dry_run_and_counts_are_checked():
    for words, reason in (
        (["--gpus", "8"], "GPUS=8 is only for a dry run"),
        (["--jobs", "0"], "JOBS=0 must be at least 1"),
        (["--workers", "0"], "WORKERS=0 must be at least 1"),
        (["--dry-run", "--gpus", "-1"], "GPUS=-1 must be at least 0"),
    ):
        with pytest.raises(InputError, match=reason):
            reproduce.main(["table9", "--profile", "smoke", *words])


@pytest.mark.parametrize(("jobs", "gpus", "launcher"), [(None, 0, "debug"), (2, 0, "local"), (None, 1, "local")])
def test_the_launcher_follows_from_the_places(jobs: int | None, gpus: int, launcher: str):
    machine = placing.machine_for([], gpus=gpus, jobs=jobs, launcher=None)
    assert placing.default_launcher(machine) == launcher
