"""Cells that measure time: they run alone, and their records say whether they did."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pufferfish_bench.paper import machine_lock, tables
from pufferfish_bench.paper.cells import TrainRun
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.records import machine_load
from pufferfish_bench.records.files import RUN, read_json, write_json
from pufferfish_bench.records.machine_load import KEY, Moment

TINY = ["model=vgg11", "model.net.width=0.05", "dataset.train_images=64", "dataset.test_images=10", "epochs=1"]
TIME, QUALITY = {"seconds_per_epoch": None, "test_accuracy": None}, {"test_accuracy": None}
LOCKED_BY_US = """
import fcntl, os, sys
from pathlib import Path

def available(mode):
    file = os.open(Path(os.environ["PUFFERFISH_LOCKS"], "pufferfish-bench.lock"), os.O_RDONLY)
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True

Path("available").write_text(f"{available(fcntl.LOCK_SH)} {available(fcntl.LOCK_EX)}")
sys.exit(1)
"""


@pytest.fixture(autouse=True)
def an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUFFERFISH_LOCKS", str(tmp_path))
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def busy() -> Iterator[subprocess.Popen]:
    """A process that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def job_of(figures: dict[str, None], name: str = "table0", **further: Any) -> Job:
    content = {"title": "", "seeds": 1, "figures": figures, "cells": {"one": {"overrides": TINY} | further}}
    (job,) = tables.parse(name, "smoke", content).jobs(1, Path("records"))
    return job


def cpu_seconds(process: subprocess.Popen) -> float:
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("figures", "further", "together", "alone"),
    [
        (TIME, {}, False, False),
        (TIME, {"kind": "lab", "workers": 2, "cap": "1gbit"}, False, False),
        (QUALITY, {}, True, False),
    ],
)
def test_only_a_run_that_measures_time_keeps_all_others_out(
    figures: dict, further: dict, together: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TrainRun, "command", lambda cell, job: [sys.executable, "-c", LOCKED_BY_US])
    job = job_of(figures, **further)
    assert job.cell.measures_time == (figures is TIME)
    assert not job.run()
    assert Path("available").read_text() == f"{together} {alone}"


def test_a_finished_run_is_copied_without_waiting():
    twin = job_of(TIME, "table1")
    assert job_of(TIME).run()
    with machine_lock.held(exclusive=True):
        assert twin.run()  # would wait for ever
    assert twin.done


def test_a_busy_process_beside_a_run_is_recorded_as_company(busy: subprocess.Popen):
    job = job_of(TIME)
    before, used = Moment.now(), cpu_seconds(busy)
    assert job.run()
    share = (cpu_seconds(busy) - used) / (Moment.now().time - before.time)
    record = read_json(job.record / RUN)
    (found,) = record[KEY]
    assert found["other_busy_cores"] > share / 2
    assert machine_load.had_company(record)
    assert read_json(job.directory / RUN) == record


def test_a_run_that_was_trained_for_a_table_without_times_tells_its_load_to_one_with_times():
    trained, timing = job_of(QUALITY), job_of(TIME, "table1")
    assert trained.directory == timing.directory
    assert trained.run()
    assert timing.run()
    assert read_json(timing.record / RUN)[KEY] == read_json(trained.directory / RUN)[KEY] != []


def test_a_run_that_starts_again_from_nothing_forgets_the_load_of_what_is_lost():
    job = job_of(TIME)
    job.directory.mkdir(parents=True)
    lost = {"load_before": 123.0, "load_after": 123.0}
    write_json(job.directory / RUN, {"format": 2, "settings": job.settings, KEY: [lost]})  # no checkpoint
    assert job.run()
    (found,) = read_json(job.record / RUN)[KEY]
    assert found != lost
