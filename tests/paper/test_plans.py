"""Dry runs of the paper's tables: every cell has its place or is named with what to do, whatever the number of GPUs."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import make_command, reproduce
from pufferfish_bench.paper import placing, tables
from pufferfish_bench.paper.cells import LabRun, TrainRun
from pufferfish_bench.paper.placement import finished_after
from pufferfish_bench.paper.work import Work, grouped, longest_first
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
    assert "MAX_WORKERS cannot help, because the batch is one of each worker" in second
    assert "CELLS='!figure4c/vanilla_16 !figure4c/pufferfish_16' leaves them out" in second
    assert said[-1].endswith(
        "pufferfish tables table19 figure4c --profile paper --seeds 1 --max-workers 8 "
        "--cells '!figure4c/vanilla_16' --cells '!figure4c/pufferfish_16'"
    )


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("target", ["tables", "figures", "figure7", "table4"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_plan_ends_with_the_command_with_which_everything_is_placed(target: str, gpus: int, capsys: pytest.CaptureFixture):
    names = [name for name in tables.names() if name.startswith(target.removesuffix("s"))] if target.endswith("s") else [target]
    assert reproduce.main([*names, "--profile", "paper", "--dry-run", "--gpus", str(gpus)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    make, typed, *variables = shlex.split(last.removeprefix("to train this: "))
    assert (make, typed) == ("make", target)
    given = dict(word.split("=", 1) for word in variables)
    assert given.pop("PROFILE") == "paper"
    assert given.get("MAX_WORKERS") == {"tables": str(gpus), "figures": str(gpus)}.get(target)
    assert ("CELLS" in given) == target.startswith("figure")
    words = [
        word for name, value in given.items() for one in value.split() for word in (make_command.VALUES.get(name, "--cells"), one)
    ]
    assert reproduce.main([*names, "--profile", "paper", "--dry-run", "--gpus", str(gpus), *words]) == 0
    assert "cannot be placed" not in capsys.readouterr().out.lower()


def test_cells_are_left_out_after_an_exclamation_mark():
    both = [tables.read(name, "smoke") for name in ("table4", "table8")]
    names = [[cell.name for cell in one.cells] for one in both]

    def kept(*patterns: str) -> list[list[str]]:
        return [[cell.name for cell in one.cells] for one in reproduce.only(both, patterns)]

    assert kept("!table4/*") == [[], names[1]]
    assert kept("table4/*", "!*fp32") == [[name for name in names[0] if not name.endswith("fp32")], []]
    with pytest.raises(InputError, match="CELLS=!none matches no cell"):
        kept("!none")


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("gpus", [8, 16])
@pytest.mark.parametrize("kind", ["table", "figure"])
def test_the_longest_runs_start_first_and_the_end_is_not_later(gpus: int, kind: str):
    machine = placing.machine_for([], gpus=gpus, jobs=None, launcher=None)
    read = [tables.read(name, "paper") for name in tables.papers() if name.startswith(kind)]
    works = grouped([job for one in read for job in one.jobs(one.seeds, Path("records")) if job.directory])

    def end(works: list[Work]) -> float:
        return finished_after([work.need(machine) for work in works], [work.cell.hours for work in works], machine)

    ordered = longest_first(works, machine)
    hours = [work.cell.hours for work in ordered]
    assert hours == sorted(hours, reverse=True)
    assert end(ordered) <= end(works) + 1e-6
    assert longest_first(works, replace(machine, jobs=1)) == works  # where the order does not matter


def test_runs_that_tables_share_are_explained(capsys: pytest.CaptureFixture):
    assert reproduce.main(["table4", "table8", "--profile", "paper", "--dry-run", "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    missing, runs = int(re.search(r": (\d+) of", said)[1]), int(re.search(r"total: (\d+) runs", said)[1])
    assert missing > runs
    assert f"the other {missing - runs} of these {missing} runs are shared with others or train nothing" in said


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
