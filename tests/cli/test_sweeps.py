"""Sweeps: a failed run does not end them, a request to stop does."""

import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pufferfish_bench.cli import compare
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from tests.support.commands import SMALL, Command, interrupt
from tests.support.torchrun import TINY, TORCHRUN, environment

SHORT = (
    "profile=smoke",
    "model.net.width=0.05",
    "dataset.train_images=32",
    "dataset.test_images=20",
    "batch_size=16",
    "epochs=1",
)


def seeds_finished(folder: Path) -> list[int]:
    records = [read_json(path) for path in folder.glob(f"results/runs/*/{RUN}")]
    return sorted(record["settings"]["seed"] for record in records if "finished" in record)


def test_a_sweep_continues_after_a_failed_run_names_it_at_the_end_and_the_same_command_tries_it_again(
    invoke: Command, tmp_path: Path
):
    failed = invoke("--multirun", *SHORT, "seed=1,-2,3")
    assert failed.returncode == 1
    assert seeds_finished(tmp_path) == [1, 3]
    *_, headline, line = failed.stderr.splitlines()
    assert headline.startswith("1 run of the sweep failed")
    overrides, _, reason = line.strip().partition(": ")
    assert shlex.split(overrides) == [*SHORT, "seed=-2"]
    assert reason.startswith("seed=-2 must be from 0")
    again = invoke("--multirun", *SHORT, "seed=1,-2,4")
    assert (again.returncode, seeds_finished(tmp_path)) == (1, [1, 3, 4])


def test_a_run_that_fails_during_training_or_because_of_a_bug_is_named_too(
    invoke: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from pufferfish_bench.trainer import Trainer

    fit = Trainer.fit

    def faulty(self: Trainer, **parts: object) -> object:
        if self.seed == 2:
            raise TypeError("a fault of ours")
        return fit(self, **parts)

    monkeypatch.setattr(Trainer, "fit", faulty)
    failed = invoke("--multirun", *SHORT, "dataset.train_images=64", "seed=1,2", "schedule.learning_rate=1e30,0.1")
    assert failed.returncode == 1
    assert seeds_finished(tmp_path) == [1]
    named = failed.stderr.split("3 runs of the sweep failed")[1].splitlines()[1:]
    assert [" the loss is not finite" in line for line in named] == [True, False, False]
    assert all(line.endswith("TypeError: a fault of ours") for line in named[1:])
    assert failed.stderr.count("Traceback") == 2


def test_a_sweep_without_failures_leaves_only_its_runs_and_they_can_be_compared(
    invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert invoke("--multirun", *SHORT, "seed=1,2").returncode == 0
    there = sorted((tmp_path / "results" / "runs").iterdir())
    assert all(path.is_dir() for path in there)
    (tmp_path / "results" / "runs" / "multirun.yaml").write_text("left by an earlier version")
    compare.main([str(path) for path in sorted((tmp_path / "results" / "runs").iterdir())])
    assert [line.removeprefix("files: ") for line in capsys.readouterr().out.splitlines() if line.startswith("files: ")] == [
        str(path) for path in there
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_sweep_at_once_with_its_code(arguments: Callable[..., list[str]], tmp_path: Path, number: int):
    words = arguments("--multirun", *SMALL, "epochs=500", "seed=-1,2,3")
    stopped = interrupt(
        words, tmp_path, number, lambda: any(read_rows(path) for path in tmp_path.glob(f"results/runs/*/{EPOCHS}"))
    )
    assert stopped.returncode == 128 + number
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1  # the third was not started
    assert "1 run of the sweep failed" in stopped.stderr  # the first


@pytest.mark.xdist_group("workers")
def test_ranks_continue_together_after_a_run_that_fails_on_all_of_them(tmp_path: Path):
    words = [*TORCHRUN, "-m", "pufferfish_bench", "--multirun", *TINY, "epochs=1", "seed=-1,2", "schedule.learning_rate=-1,0.1"]
    failed = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert failed.returncode == 1, failed.stderr
    assert seeds_finished(tmp_path) == [2]
    assert failed.stderr.count("3 runs of the sweep failed") == 1  # only rank 0 reports it


@pytest.mark.xdist_group("workers")
def test_a_rank_does_not_continue_when_it_is_the_only_one_that_failed(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, time\n"
        "from pufferfish_bench.distributed.world import join\n"
        "world = join('cpu', timeout=600, warn_after=60)\n"
        "both = world.all_failed(1)\n"
        "alone = world.all_failed(2, seconds=0.5) if world.rank == 0 else None\n"
        "pathlib.Path(f'found{world.rank}').write_text(f'{both} {alone}')\n"
        "world.barrier()\n"
    )
    done = subprocess.run([*TORCHRUN, str(program)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"found{rank}").read_text() for rank in range(2)] == ["True False", "True None"]


def test_a_launcher_of_processes_trains_every_run_and_reports_one_that_fails(arguments: Callable[..., list[str]], tmp_path: Path):
    words = arguments("--multirun", "hydra/launcher=submitit_local", *SHORT, "seed=1,-2")
    failed = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert failed.returncode != 0
    assert "error: seed=-2 must be from 0" in failed.stderr
    assert seeds_finished(tmp_path) == [1]
    logs = list((tmp_path / "results" / "runs" / ".sweeps" / ".submitit").glob("*/*_log.out"))
    assert len(logs) == 2  # on a disk that the machines of a cluster share, not in a temporary folder
