"""Running the tables: only what is missing, whole or not at all, and nothing without having said how long it takes."""

import json
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

from pufferfish_bench import main, processors, table
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, RUN, read_json, read_rows, write_json
from pufferfish_bench.reproduce import __main__ as reproducer
from pufferfish_bench.reproduce import jobs, probe
from pufferfish_bench.settings import settings_of

TINY = ["model=vgg11", "dataset.train_images=128", "dataset.test_images=20", "epochs=2"]
LAB = {"overrides": TINY, "workers": 2, "kind": "lab", "cap": "100mbit"}


def content(cells: dict[str, Any]) -> dict[str, Any]:
    return {"title": "", "seeds": 1, "figures": {"test_accuracy": None}, "cells": cells}


def tiny(name: str = "table0", **cells: dict[str, Any]) -> table.PaperTable:
    return table.parse(name, "smoke", content(cells or {"one": {"overrides": TINY}}))


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder without data and without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def reproduce(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pufferfish_bench.reproduce", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put tables of our own in the place of the paper's, in this process."""
    folder = tmp_path / "tables"
    folder.mkdir()
    monkeypatch.setattr(table, "folder", lambda: folder)

    def write(name: str, **cells: dict[str, Any]) -> None:
        OmegaConf.save(OmegaConf.create(content(cells)), folder / f"{name}.yaml")

    return write


def test_where_a_run_will_be_is_where_it_goes(invoke):
    words = [*TINY, "profile=smoke", "epochs=1"]
    foreseen = main.identify(words, [1, 7])
    for seed, (directory, settings) in zip((1, 7), foreseen, strict=True):
        assert invoke(*words, f"seed={seed}").returncode == 0
        assert read_json(directory / RUN)["settings"] == settings


def test_the_settings_of_a_run_do_not_ask_for_its_directory():
    asked: list[str] = []
    OmegaConf.register_new_resolver("asked", lambda: asked.append("run_dir") or "", replace=True)
    config = OmegaConf.create({"run_dir": "${asked:}", "data_root": "here", "epochs": 2, "dataset": {"path": "${data_root}/x"}})
    assert settings_of(config) == {"epochs": 2, "dataset": {"path": "/x"}}
    assert not asked


def test_a_run_is_kept_once_and_shared_between_tables(tmp_path: Path):
    (job,), (twin,) = (jobs.jobs_of(tiny(name), 1, tmp_path / "records") for name in ("table0", "table1"))
    assert not job.done
    assert jobs.do(job)
    assert job.done
    assert not twin.done
    before = job.directory.stat().st_mtime_ns
    assert jobs.do(twin)
    assert twin.done
    assert job.directory.stat().st_mtime_ns == before  # not even opened by another process
    assert sorted(path.name for path in twin.record.iterdir()) == [EPOCHS, RUN]
    assert len(read_rows(twin.record / EPOCHS)) == 2


def test_a_record_of_other_settings_or_of_a_run_that_goes_on_is_not_this_one(tmp_path: Path):
    (job,) = jobs.jobs_of(tiny(), 1, tmp_path / "records")
    job.record.mkdir(parents=True)
    for record, done in (
        ({"settings": job.settings, "finished": "now"}, True),
        ({"settings": job.settings}, False),
        ({"settings": job.settings | {"epochs": 3}, "finished": "now"}, False),
    ):
        write_json(job.record / RUN, record)
        assert job.done == done
    for damaged in ("{", "{}", "[]", '{"finished": "now"}'):
        (job.record / RUN).write_text(damaged)
        assert not job.done


def test_a_run_over_other_links_is_another_run(tmp_path: Path):
    cells = {"train": {"overrides": TINY, "workers": 2}, "slow": LAB, "fast": LAB | {"cap": "1gbit"}}
    train, slow, fast = found = jobs.jobs_of(tiny(**cells), 1, tmp_path / "records")
    assert train.settings == slow.settings == fast.settings
    assert len({job.directory for job in found}) == 3
    links = {"train": {}, "slow": {"cap_bits_per_second": 10**8}, "fast": {"cap_bits_per_second": 10**9}}
    for kind, of_lab in links.items():
        network = {"ranks": 2} | ({"hosts": 2} | of_lab if of_lab else {})  # ranks: measured in a lab or not
        for job in found:
            for folder in (job.record, job.directory):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / RUN, {"settings": job.settings, "finished": "now", "network": network})
            assert job.done == (job.cell.name == kind)
            if job.done:
                assert jobs.finished(job)
            else:
                with pytest.raises(InputError, match=r"holds a run over other links .*cap_bits_per_second: .* -> "):
                    jobs.finished(job)


def test_a_lab_without_a_rate_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="--cap None is not a rate"):
        jobs.jobs_of(tiny(one=LAB | {"cap": None}), 1, tmp_path)


def test_seeds_go_round_by_round_and_what_is_counted_is_counted_once(tmp_path: Path):
    counted = {"kind": "describe", "net": "hybrid", "overrides": ["model=vgg19"], "figures": {"parameters": None}}
    wanted = tiny(one={"overrides": TINY}, two={"overrides": [*TINY, "method=hybrid"]}, three=counted)
    found = jobs.jobs_of(wanted, 2, tmp_path)
    assert [(job.cell.name, job.seed) for job in found] == [("three", 1), ("one", 1), ("two", 1), ("one", 2), ("two", 2)]
    assert len({job.directory for job in found}) == 5
    assert len({job.record for job in found}) == 5


def test_counting_needs_no_data_and_keeps_the_papers_digits(tmp_path: Path):
    counted = {"kind": "describe", "net": "hybrid", "overrides": ["model=vgg19"], "figures": {"parameters": None}}
    (job,) = jobs.jobs_of(tiny(three=counted), 1, tmp_path)
    assert jobs.do(job)
    assert job.done
    assert read_json(job.record / RUN)["counted"]["parameters"] == 8370634


def test_several_workers_are_torchruns_and_capped_links_the_labs(tmp_path: Path):
    (job,) = jobs.jobs_of(tiny(one={"overrides": TINY, "workers": 2}), 1, tmp_path)
    words = jobs.command(job)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]  # there may be no file torchrun
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert not any(word.startswith("workers=") for word in words)
    (job,) = jobs.jobs_of(tiny(one={"overrides": TINY, "workers": 2, "kind": "lab", "cap": "1gbit"}), 1, tmp_path)
    words = jobs.command(job)
    assert words[2:8] == ["pufferfish_bench.netlab", "--hosts", "2", "--cap", "1gbit", "--"]


def test_a_probe_says_how_long_and_leaves_nothing(tmp_path: Path):
    short, long = (jobs.jobs_of(tiny(one={"overrides": [*TINY, f"epochs={epochs}"]}), 1, tmp_path)[0] for epochs in (1, 1000))
    assert 0 < probe.probe(short) < 60
    assert probe.probe(long) > 10 * probe.probe(short)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_several_workers_ends_well_on_all_of_them(tmp_path: Path):
    (job,) = jobs.jobs_of(tiny(one={"overrides": [*TINY, "dataset.train_images=256"], "workers": 2}), 1, tmp_path)
    words, environment = [*jobs.command(job), "probe_steps=2"], jobs.surroundings(job)
    tried = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert tried.returncode == 0, tried.stderr
    assert "OMP_NUM_THREADS" not in tried.stderr  # torchrun warns where it has to choose the threads itself
    assert json.loads(tried.stdout.splitlines()[-1])["steps"] == 4  # of two epochs


def test_workers_share_the_cores_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone, many = (jobs.jobs_of(tiny(one={"overrides": TINY, "workers": count}), 1, tmp_path)[0] for count in (1, 3))
    monkeypatch.setattr(processors, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "OMP_NUM_THREADS" not in jobs.surroundings(alone)
    assert jobs.surroundings(many)["OMP_NUM_THREADS"] == "2"
    assert processors.environment(9)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert jobs.surroundings(many)["OMP_NUM_THREADS"] == "5"


def test_an_estimate_counts_what_tables_share_once_and_names_what_it_cannot_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "probe", lambda job: 3600.0 if "model=vgg11" in job.cell.overrides else "no data")
    cells = {"one": {"overrides": TINY}, "two": {"overrides": ["model=vgg19"]}}
    said: list[str] = []
    shared = [job for name in ("table0", "table1") for job in jobs.jobs_of(tiny(name, **cells), 3, tmp_path)]
    assert probe.estimate(shared, said.append) == 3 * 3600.0
    assert said[:2] == ["trying the first steps of 2 cells; PROBE=0 skips this", "  one: about 60 minutes, 3 times"]
    assert said[2] == "  two: not known: no data"
    assert said[3].startswith("in all about 3 hours, and what is not known;")
    assert probe.estimate([job for job in shared if job.cell.name == "two"], said.append) == 0
    assert said[-1].startswith("in all not known;")


def test_an_estimate_takes_off_what_runs_have_behind_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "probe", lambda job: 1000.0)
    one, *_, broken = jobs.jobs_of(tiny(one={"overrides": TINY}), 3, tmp_path / "records")
    for job in (one, broken):
        job.directory.mkdir(parents=True)
    write_json(one.directory / RUN, {"settings": one.settings, "plan": [{"epochs": [0, 1]}, {"epochs": [1, 4]}]})
    (one.directory / EPOCHS).write_text('{"epoch": 0}\n{"epoch": 1}\n{"epoch": 2}\n')
    (broken.directory / RUN).write_text("{")
    said: list[str] = []
    assert probe.estimate([one, *_, broken], said.append) == 250.0 + 2000.0
    assert said[1] == "  one: about 17 minutes, 3 times; of this 25 % is done"
    assert said[2].startswith("in all about 38 minutes;")


def test_what_is_tried_is_said_before_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(probe, "probe", lambda job: float(len(said)))
    assert probe.estimate(jobs.jobs_of(tiny(), 1, tmp_path), said.append) == 1.0
    assert said[0] == "trying the first steps of 1 cell; PROBE=0 skips this"


def test_an_estimate_has_the_lab_and_leaves_out_what_another_table_has_had_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "probe", lambda job: 60.0)
    found = jobs.jobs_of(tiny(one={"overrides": TINY}, slow=LAB, fast=LAB | {"cap": "1gbit"}), 2, tmp_path / "records")
    said: list[str] = []
    assert probe.estimate(found, said.append) == 6 * 60.0
    assert [line.split(":")[0].strip() for line in said[1:4]] == ["one", "slow", "fast"]
    for job in found:
        job.directory.mkdir(parents=True)
        network = {"network": job.links} if job.links else {}
        write_json(job.directory / RUN, {"settings": job.settings, "finished": "now", **network})
    said.clear()
    assert probe.estimate(found, said.append) == 0
    assert said == []


def test_a_cell_that_cannot_be_tried_is_quoted_where_it_says_why():
    ranks = "error: the first\nrank 1: error: no data in x\nE1116 torchrun: failed (exitcode: 2)\n=====\n"
    assert probe.reason(ranks) == "no data in x"
    assert probe.reason("host 1: error: no data\nnetlab: host 1 ended with code 2\n") == "no data"
    assert probe.reason("netlab: needs root\n\n") == "netlab: needs root"
    assert probe.reason("KeyError: 'x'\n=====\n-----\n") == "KeyError: 'x'"
    assert probe.reason("=====\n") == "its first steps say nothing"


def test_a_probe_that_takes_too_long_ends_its_workers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = (  # as torchrun: its worker is in a session of its own, and ends with it if it is asked
        "import pathlib, signal, subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "def end(*_):\n    worker.terminate()\n    worker.wait()\n    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('worker').write_text(str(worker.pid))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(probe, "command", lambda job: [sys.executable, "-c", launcher])
    monkeypatch.setattr(probe, "PATIENCE", 3)
    (job,) = jobs.jobs_of(tiny(), 1, tmp_path)
    assert probe.probe(job) == "4 steps take more than 3 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("worker").read_text()), 0)


def test_who_does_not_listen_is_ended_by_force(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "GRACE", 0.2)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    child.stdout.readline()
    jobs.end(child)
    assert child.returncode == -signal.SIGKILL


def test_the_papers_settings_without_a_gpu_explain_themselves_and_stop(tmp_path: Path):
    refused = reproduce("table9", "--profile", "paper", "--seeds", "1")
    assert refused.returncode == 2
    assert "2 of 2 runs are missing" in refused.stdout
    assert "trying the first steps" not in refused.stdout  # it would take minutes, and for nothing
    assert "CONFIRM=1 does it all the same" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_failed_cells_are_named_and_do_not_stop_the_others(tmp_path: Path):
    failed = reproduce("table9", "--profile", "cpu", "--seeds", "1", "--no-probe")
    assert failed.returncode == 1
    assert "run 2 of 2" in failed.stdout
    assert "failed: table9/without_warmup/seed1, table9/with_warmup/seed1" in failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_wish_to_stop_reaches_the_run_once_and_is_waited_for(tmp_path: Path, number: int):
    run = (
        "import pathlib, signal, time\n"
        "heard = []\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda number, frame: heard.append(number))\n"
        "pathlib.Path('ready').touch()\n"
        "while not heard: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"  # the checkpoint
        "pathlib.Path('heard').write_text(str(len(heard)))\n"
    )
    attend = (
        "import sys\nfrom pufferfish_bench.reproduce import jobs\n"
        f"try: jobs.attend([sys.executable, '-c', {run!r}])\nexcept jobs.Stop: sys.exit(7)"
    )
    runner = subprocess.Popen([sys.executable, "-c", attend], start_new_session=True)
    deadline = time.monotonic() + 60
    while not Path("ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(runner.pid, number)  # as a terminal does
    assert runner.wait(timeout=60) == 7
    assert Path("heard").read_text() == "1"


def test_a_cell_after_one_that_fails_is_run_and_kept(tables, capsys: pytest.CaptureFixture):
    tables("table0", bad={"overrides": [*TINY, "epochs=0"]}, good={"overrides": [*TINY, "epochs=1"]})
    assert reproducer.main(["table0", "--profile", "smoke", "--no-probe"]) == 1
    assert not Path("results/records/smoke/table0/bad").exists()
    assert "finished" in read_json(Path("results/records/smoke/table0/good/seed1") / RUN)
    assert Path("results/tables/smoke/table0.md").exists()
    assert capsys.readouterr().err.splitlines()[-1].startswith("failed: table0/bad/seed1;")


@pytest.mark.parametrize("error", [InputError("no data"), OSError(28, "full", "there"), FileNotFoundError("no program")])
def test_what_fails_is_named_last_even_if_the_report_refuses(
    tables, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def do(job: jobs.Job) -> bool:
        if job.cell.name == "bad":
            raise error
        return True

    monkeypatch.setattr(jobs, "do", do)
    tables("table0", bad={"overrides": TINY}, good={"overrides": [*TINY, "epochs=1"]})
    tables("table1", other={"overrides": TINY})
    damaged = Path("results/records/smoke/table1/other/seed1") / RUN
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    with pytest.raises(SystemExit):
        reproducer.main(["table0", "--profile", "smoke", "--no-probe"])
    said = capsys.readouterr()
    assert "run 2 of 2" in said.out
    first, refusal, last = said.err.splitlines()
    assert first.startswith("error: ")
    assert str(damaged) in refusal
    assert last.startswith("failed: table0/bad/seed1;")


def test_only_the_cells_that_were_asked_for_are_run(tables, monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []
    monkeypatch.setattr(jobs, "do", lambda job: bool(ran.append(job.name)))
    tables("table0", vanilla_fp32={"overrides": TINY}, vanilla_amp={"overrides": TINY}, low_rank_fp32={"overrides": TINY})
    tables("table1", other={"overrides": TINY})
    words = ["table0", "table1", "--profile", "smoke", "--no-probe"]
    reproducer.main([*words, "--cells", "*fp32"])
    assert ran == ["table0/vanilla_fp32/seed1", "table0/low_rank_fp32/seed1"]
    ran.clear()
    reproducer.main([*words, "--cells", "oth?r", "--cells", "*amp"])
    assert ran == ["table0/vanilla_amp/seed1", "table1/other/seed1"]
    there = "table0 has vanilla_fp32, vanilla_amp, low_rank_fp32; table1 has other"
    with pytest.raises(InputError, match=f"CELLS=fp32 fits no cell: {there}"):
        reproducer.main([*words, "--cells", "*fp32", "--cells", "fp32"])


def test_a_table_that_was_stopped_goes_on_where_it_was(tables, tmp_path: Path):
    small = ["model=vgg11", "model.width=0.05", "dataset.train_images=64", "dataset.test_images=10"]
    tables("table0", short={"overrides": [*small, "epochs=1"]}, long={"overrides": [*small, "epochs=12"]})
    program = (
        "import pathlib, runpy\nfrom pufferfish_bench import table\ntable.folder = lambda: pathlib.Path('tables')\n"
        "runpy.run_module('pufferfish_bench.reproduce', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "table0", "--profile", "smoke", "--no-probe"]
    short, long = jobs.jobs_of(table.read("table0", "smoke"), 1, tmp_path / "results" / "records")
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not read_rows(long.directory / EPOCHS) and stopped.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(stopped.pid, signal.SIGINT)
    _, complaint = stopped.communicate(timeout=120)
    assert stopped.returncode == 128 + signal.SIGINT, complaint
    assert complaint.splitlines()[-1] == "stopped; the same command goes on from here"
    assert short.done
    assert not long.done
    before = (short.directory / RUN).stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 runs are missing" in again.stdout
    assert (short.directory / RUN).stat().st_mtime_ns == before
    assert long.done
    assert [row["epoch"] for row in read_rows(long.record / EPOCHS)] == list(range(12))
    assert len(read_json(long.record / RUN)["resumed"]) == 1
