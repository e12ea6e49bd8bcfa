"""Runs side by side on this machine: the same records as one after another, and nothing is lost however the command ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from pufferfish_bench.base import cores
from pufferfish_bench.paper import launching, tables, threads
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.launching import LOG, RunCell
from pufferfish_bench.paper.placement import Machine
from pufferfish_bench.paper.work import grouped
from pufferfish_bench.records import run_directory
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.report import overview
from pufferfish_bench.report.overview import Overview
from tests.support.training import record

SMALL = ["model=vgg11", "model.net.width=0.05", "dataset.train_images=64", "dataset.test_images=10"]
LONG = [*SMALL, "dataset.train_images=400", "epochs=40"]
PATIENCE = 240


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory with tables of its own, no data and no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PUFFERFISH_CONF", "conf")
    Path("conf/table").mkdir(parents=True)


def write(name: str, figures: tuple[str, ...] = ("test_accuracy",), seeds: int = 1, **cells: list[str]) -> list[Job]:
    """Write a table with one training per cell and seed; its jobs."""
    content: dict[str, Any] = {"title": "", "seeds": seeds, "figures": dict.fromkeys(figures)}
    content["cells"] = {cell: {"overrides": words} for cell, words in cells.items()}
    OmegaConf.save(OmegaConf.create(content), Path("conf/table") / f"{name}.yaml")
    return tables.read(name, "smoke").jobs(seeds, Path("results/records"))


def start(*words: str, **options: Any) -> subprocess.Popen:
    command = [sys.executable, "-m", "pufferfish_bench.cli.reproduce", *words, "--profile", "smoke", "--no-probe"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes, **options)


def end(started: subprocess.Popen) -> tuple[int, str, str]:
    output, errors = started.communicate(timeout=PATIENCE)
    return started.returncode, output, errors


def wait_for(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(job: Job) -> int:
    return len(read_rows(job.directory / EPOCHS))


def test_two_at_a_time_leave_the_same_records_as_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = write("mine", vanilla=SMALL, hybrid=[*SMALL, "method=hybrid"])
    found = {}
    for jobs in ("2", "1"):
        (tmp_path / jobs / "conf").mkdir(parents=True)
        (tmp_path / jobs / "conf" / "table").symlink_to(tmp_path / "conf" / "table")
        code, output, errors = end(start("mine", "--jobs", jobs, cwd=tmp_path / jobs))
        assert code == 0, errors
        found[jobs] = [record(tmp_path / jobs / job.record) for job in one]
        assert all((tmp_path / jobs / job.directory / LOG).exists() == (jobs == "2") for job in one)
        assert "run 2 of 2: mine/hybrid/seed1" in output
    assert found["2"] == found["1"]


def test_the_same_command_finishes_after_a_kill_and_leaves_no_process_and_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    first, second = jobs = write("mine", one=LONG, two=[*LONG, "method=hybrid"])
    killed = start("mine", "--jobs", "2")
    wait_for(lambda: all(map(rows, jobs)))
    assert len(list((tmp_path / "temporary").glob("pufferfish-*"))) == 1
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    code, output, errors = end(start("mine", "--jobs", "2"))  # at once: the runs may still write their checkpoints
    assert code == 0, errors
    assert "2 of 2 runs are missing" in output
    for job in (first, second):
        assert [row["epoch"] for row in read_rows(job.record / EPOCHS)] == list(range(40))
        assert len(read_json(job.record / RUN)["resumed"]) == 1  # it stopped with a checkpoint, and was not trained to its end
        assert not run_directory.in_use(job.directory)
        assert "Traceback" not in (job.directory / LOG).read_text()
    wait_for(lambda: not any((tmp_path / "temporary").glob("pufferfish-*")))  # the last of the two runs has removed it


def test_a_training_stops_when_its_supervisor_is_killed():
    (job,) = write("mine", one=LONG)
    program = (
        "from pathlib import Path\nfrom pufferfish_bench.paper import tables\n"
        "(job,) = tables.read('mine', 'smoke').jobs(1, Path('results/records'))\njob.run()"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    wait_for(lambda: rows(job))
    assert run_directory.in_use(job.directory)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    wait_for(lambda: not run_directory.in_use(job.directory))
    assert 0 < rows(job) < 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_with_checkpoints_and_the_same_command_continues(number: int):
    jobs = write("mine", one=LONG, two=[*LONG, "method=hybrid"], three=[*LONG, "method=low_rank"])
    stopped = start("mine", "--jobs", "2")
    wait_for(lambda: all(map(rows, jobs[:2])))
    os.killpg(stopped.pid, number)  # as a terminal does
    code, output, errors = end(stopped)
    assert code == 128 + number, errors
    assert "stopping 2 runs, with checkpoints" in output
    assert errors.splitlines()[-1] == "stopped; run the same command to continue"
    assert not any(run_directory.in_use(job.directory) or job.trained for job in jobs[:2])
    assert rows(jobs[2]) == 0
    before = [rows(job) for job in jobs]
    again = start("mine", "--jobs", "2")
    wait_for(lambda: all(rows(job) > count for job, count in zip(jobs[:2], before, strict=False)))
    again.send_signal(signal.SIGTERM)
    assert end(again)[0] == 128 + signal.SIGTERM
    for job in jobs[:2]:
        assert [row["epoch"] for row in read_rows(job.directory / EPOCHS)] == list(range(rows(job)))


def test_a_run_that_fails_is_shown_with_the_end_of_what_it_printed_and_the_others_are_kept():
    bad, good = write("mine", bad=[*SMALL, "epochs=0"], good=[*SMALL, "epochs=1"])
    code, _, errors = end(start("mine", "--jobs", "2"))
    assert code == 1
    assert f"mine/bad/seed1 failed; {bad.directory / LOG} ends with" in errors
    assert "error: epochs=0 must be" in errors
    assert errors.splitlines()[-1].startswith("failed: mine/bad/seed1;")
    assert good.done


def test_what_measures_time_is_alone():
    write("mine", one=[*SMALL, "epochs=1"], two=[*SMALL, "method=hybrid", "epochs=1"])
    write("times", figures=("seconds_per_epoch",), slow=[*SMALL, "epochs=1"])
    code, output, errors = end(start("times", "mine", "--jobs", "2"))
    assert code == 0, errors
    said = [line.split(";")[0].split("/")[:2] for line in output.splitlines() if line.startswith(("run ", "done"))]
    assert [line[0].split(": ")[-1] for line in said] == ["mine"] * 2 + ["times"] * 2  # it starts when the others are done


def test_two_commands_that_need_the_same_run_train_it_once():
    ((mine,), (yours,)) = write("mine", one=[*SMALL, "epochs=8"]), write("yours", two=[*SMALL, "epochs=8"])
    assert mine.directory == yours.directory
    both = [start(name, "--jobs", jobs) for name, jobs in (("mine", "2"), ("yours", "1"))]
    assert [end(one)[0] for one in both] == [0, 0]
    assert mine.done
    assert yours.done
    assert not read_json(mine.directory / RUN).get("resumed")
    assert len(read_json(mine.directory / RUN)["machine_load"]) == 1


def test_jobs_with_a_common_run_become_one_and_the_one_that_measures_time_stands_for_it():
    jobs = [*write("mine", one=SMALL), *write("times", figures=("seconds_per_epoch",), two=SMALL)]
    (work,) = grouped(jobs)
    assert [job.name for job in work.jobs] == ["times/two/seed1", "mine/one/seed1"]
    assert work.need(Machine(("0", "1"), 2)).alone


def test_submitits_debug_executor_runs_in_this_process(capfd: pytest.CaptureFixture):
    from pufferfish_bench.cli import reproduce

    (job,) = write("mine", one=[*SMALL, "epochs=1"])
    assert reproduce.main(["mine", "--profile", "smoke", "--no-probe", "--launcher", "debug", "--jobs", "2"]) == 0
    assert job.done
    assert not (job.directory / LOG).exists()
    assert "phase train" in capfd.readouterr().out  # what a run prints is seen at once


def test_a_run_gets_its_gpus_or_its_part_of_the_cores(monkeypatch: pytest.MonkeyPatch):
    shared, alone = *write("mine", one=SMALL), *write("times", figures=("seconds_per_epoch",), two=SMALL)
    monkeypatch.setattr(cores, "cores", lambda: 8)
    with_gpus, without = Machine(("GPU-a", "GPU-b"), 2, has_gpus=True), Machine(("0", "1"), 2)
    assert RunCell(shared, ("GPU-b",), with_gpus, Path()).share() == {"CUDA_VISIBLE_DEVICES": "GPU-b", cores.SHARE: "4"}
    both = RunCell(shared, ("GPU-a", "GPU-b"), with_gpus, Path()).share()
    assert both == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", cores.SHARE: "8"}
    one_at_a_time = Machine(("GPU-a", "GPU-b"), 1, has_gpus=True)
    assert RunCell(shared, ("GPU-a",), one_at_a_time, Path()).share()[cores.SHARE] == "8"
    assert RunCell(shared, ("1",), without, Path()).share() == {cores.SHARE: "4"}
    assert RunCell(alone, ("1",), without, Path()).share() == {cores.SHARE: "8"}


def test_a_share_of_the_cores_is_a_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    (job,) = write("mine", one=SMALL)
    monkeypatch.delenv("OMP_NUM_THREADS")
    here = cores.cores()
    monkeypatch.setenv(cores.SHARE, "1")
    assert cores.cores() == 1
    assert job.cell.environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv(cores.SHARE, "1000")
    assert cores.cores() == here  # no more than there are


def test_the_end_of_a_log_that_is_missing_is_empty(tmp_path: Path):
    assert launching.last_lines(tmp_path / "none") == []


def test_the_log_of_a_run_ends_with_what_the_run_printed():
    (job,) = write("mine", one=[*SMALL, "epochs=1"])
    code, _, errors = end(start("mine", "--launcher", "local"))
    assert code == 0, errors
    log = (job.directory / LOG).read_text()
    assert "phase train" in log
    assert "submitit" not in log


def test_the_last_run_has_no_time_left_when_only_its_record_is_to_be_kept(monkeypatch: pytest.MonkeyPatch):
    works = grouped(write("mine", one=SMALL, two=[*SMALL, "method=hybrid"]))
    shown = Overview(works, Machine(("0", "1"), 2), {work.directory: 100.0 for work in works}, console=Console(), live=False)
    for work in works:
        shown.started(work, ("0",))
    assert shown.summary() == "2 running, 0 done, 0 failed, 0 waiting; about 100 seconds left"
    monkeypatch.setattr(overview, "share_left", lambda job: 0.0)
    assert shown.summary() == "2 running, 0 done, 0 failed, 0 waiting"


def test_another_number_of_threads_than_that_of_the_finished_runs_is_named(monkeypatch: pytest.MonkeyPatch):
    (first, second), machine = write("mine", seeds=2, one=SMALL), Machine(("0",), 1)
    first.record.mkdir(parents=True)
    (first.record / RUN).write_text('{"hardware": {"kind": "cpu", "threads": 2}}')
    works = grouped([second])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (line,) = threads.changes(works, [first], machine)
    assert "changes for runs of mine/one (before: 2, now 1)" in line
    assert threads.changes(works, [first], Machine(("0",), 1, has_gpus=True)) == []
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.changes(works, [first], machine) == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(cores, "cores", lambda: 8)
    assert threads.changes(works, [first], Machine(("0", "1", "2", "3"), 4)) == []
    assert "now 4" in threads.changes(works, [first], Machine(("0", "1"), 2))[0]
    (first.record / RUN).write_text('{"hardware": {"kind": "cuda", "threads": 5}}')
    assert threads.changes(works, [first], Machine(("0", "1"), 2)) == []
