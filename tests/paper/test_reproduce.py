"""Running the tables: only what is missing, completely or not at all, and not without an estimate of how long it takes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pufferfish_bench.base import cores
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import reproduce as reproducer
from pufferfish_bench.config import build, yaml_files
from pufferfish_bench.config.settings import settings_of
from pufferfish_bench.paper import kept_records, probe, supervision, tables
from pufferfish_bench.paper.cells import TrainRun
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows, write_json
from tests.support.repository import REPOSITORY

TINY = ["model=vgg11", "dataset.train_images=128", "dataset.test_images=20", "epochs=2"]
LAB = {"overrides": TINY, "workers": 2, "kind": "lab", "cap": "100mbit"}


def content(cells: dict[str, Any]) -> dict[str, Any]:
    return {"title": "", "seeds": 1, "figures": {"test_accuracy": None}, "cells": cells}


def tiny(name: str = "table0", **cells: dict[str, Any]) -> tables.PaperTable:
    return tables.parse(name, "smoke", content(cells or {"one": {"overrides": TINY}}))


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, no data and no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def reproduce(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pufferfish_bench.cli.reproduce", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def put_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the tables of the paper in this process."""
    folder = tmp_path / "tables"
    folder.mkdir()
    monkeypatch.setattr(tables, "folder", lambda: folder)

    def write(name: str, **cells: dict[str, Any]) -> None:
        OmegaConf.save(OmegaConf.create(content(cells)), folder / f"{name}.yaml")

    return write


def test_a_run_is_written_where_its_identity_says(invoke):
    words = [*TINY, "profile=smoke", "epochs=1"]
    foreseen = build.identify(words, [1, 7])
    for seed, (directory, settings) in zip((1, 7), foreseen, strict=True):
        assert invoke(*words, f"seed={seed}").returncode == 0
        assert read_json(directory / RUN)["settings"] == settings


def test_the_settings_of_a_run_do_not_resolve_its_directory():
    asked: list[str] = []
    OmegaConf.register_new_resolver("asked", lambda: asked.append("run_dir") or "", replace=True)
    dataset = {"folder": "x", "source": {"root": "${data_root}", "beside": "${run_dir}"}}
    config = OmegaConf.create({"run_dir": "${asked:}", "data_root": "here", "epochs": 2, "dataset": dataset})
    assert settings_of(config) == {"epochs": 2, "dataset": {"folder": "x"}}
    assert not asked


def test_a_run_is_kept_once_and_shared_between_tables(tmp_path: Path):
    (job,), (twin,) = (tiny(name).jobs(1, tmp_path / "records") for name in ("table0", "table1"))
    assert not job.done
    assert job.run()
    assert job.done
    assert not twin.done
    before = job.directory.stat().st_mtime_ns
    assert twin.run()
    assert twin.done
    assert job.directory.stat().st_mtime_ns == before  # no process has written to it
    assert sorted(path.name for path in twin.record.iterdir()) == [EPOCHS, RUN]
    assert len(read_rows(twin.record / EPOCHS)) == 2


def test_a_run_is_taken_from_the_record_of_another_table_where_its_directory_is_gone(
    put_tables, tmp_path: Path, capsys: pytest.CaptureFixture
):
    put_tables("table0", one={"overrides": TINY})
    put_tables("table1", same={"overrides": TINY}, other={"overrides": [*TINY, "epochs=3"]})
    (first,) = tables.read("table0", "smoke").jobs(1, tmp_path / "results/records")
    assert first.run()
    shutil.rmtree(tmp_path / "results/runs")  # as in a clone
    same, other = tables.read("table1", "smoke").jobs(1, tmp_path / "results/records")
    assert reproducer.reproduce(["table1"], profile="smoke", options=reproducer.Options(estimate=False)) == 0
    assert "not trained again, because other records have them: 1" in capsys.readouterr().out
    assert read_json(same.record / RUN) == read_json(first.record / RUN)
    assert (same.record / EPOCHS).read_text() == (first.record / EPOCHS).read_text()
    assert other.done
    assert [path for path in (tmp_path / "results/runs").iterdir() if (path / RUN).exists()] == [other.directory.resolve()]


def test_a_record_is_used_again_only_if_it_is_whole_and_of_the_same_run_and_no_time_is_measured(tmp_path: Path):
    records = tmp_path / "records"
    (first,) = tiny("table0").jobs(1, records)
    assert first.run()

    def used(**cell: Any) -> bool:
        (job,) = tiny("table1", one={"overrides": TINY, **cell}).jobs(1, records)
        assert kept_records.elsewhere([job], records) in ({}, {job.record: first.record})
        return bool(kept_records.elsewhere([job], records))

    assert used()
    assert used(figures={"test_accuracy": None, "parameters": None})
    assert not used(figures={"test_accuracy": None, "seconds": None})
    assert not used(overrides=[*TINY, "epochs=3"])
    assert not used(workers=2)
    assert not used(**LAB)
    whole, rows = read_json(first.record / RUN), (first.record / EPOCHS).read_text()
    write_json(first.record / RUN, {key: value for key, value in whole.items() if key != "summary"})
    assert not used()
    write_json(first.record / RUN, whole)
    assert used()
    for damaged in (None, "", rows.splitlines()[0] + "\n"):
        (first.record / EPOCHS).unlink(missing_ok=True)
        if damaged is not None:
            (first.record / EPOCHS).write_text(damaged)
        assert not used()


def test_a_dry_run_says_how_to_take_over_records_if_nothing_else_is_missing(
    put_tables, tmp_path: Path, capsys: pytest.CaptureFixture
):
    put_tables("table0", one={"overrides": TINY})
    put_tables("table1", same={"overrides": TINY})
    assert reproducer.reproduce(["table0"], profile="smoke", options=reproducer.Options(estimate=False)) == 0
    shutil.rmtree(tmp_path / "results/runs")
    capsys.readouterr()
    assert reproducer.reproduce(["table1"], profile="smoke", options=reproducer.Options(dry=True)) == 0
    said = capsys.readouterr().out
    assert "not trained again, because other records have them: 1" in said
    assert "to train this: " in said
    assert not (tmp_path / "results/records/smoke/table1").exists()


def test_a_record_with_other_settings_or_of_an_unfinished_run_does_not_count(tmp_path: Path):
    (job,) = tiny().jobs(1, tmp_path / "records")
    job.record.mkdir(parents=True)
    for record, done in (
        ({"format": 2, "settings": job.settings, "finished": "now"}, True),
        ({"settings": job.settings, "finished": "now"}, False),  # of an older layout
        ({"format": 2, "settings": job.settings}, False),
        ({"format": 2, "settings": job.settings | {"epochs": 3}, "finished": "now"}, False),
    ):
        write_json(job.record / RUN, record)
        assert job.done == done
    for damaged in ("{", "{}", "[]", '{"finished": "now"}'):
        (job.record / RUN).write_text(damaged)
        assert not job.done


def test_a_run_over_other_links_is_another_run(tmp_path: Path):
    cells = {"train": {"overrides": TINY, "workers": 2}, "slow": LAB, "fast": LAB | {"cap": "1gbit"}}
    train, slow, fast = found = tiny(**cells).jobs(1, tmp_path / "records")
    assert train.settings == slow.settings == fast.settings
    assert len({job.directory for job in found}) == 3
    links = {"train": {}, "slow": {"cap_bits_per_second": 10**8}, "fast": {"cap_bits_per_second": 10**9}}
    for kind, of_lab in links.items():
        network = {"ranks": 2} | ({"hosts": 2} | of_lab if of_lab else {})  # ranks: measured in a lab or not
        for job in found:
            for folder in (job.record, job.directory):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / RUN, {"format": 2, "settings": job.settings, "finished": "now", "network": network})
            assert job.done == (job.cell.name == kind)
            if job.done:
                assert job.trained
            else:
                with pytest.raises(InputError, match=r"holds a run over other links .*cap_bits_per_second: .* -> "):
                    assert job.trained


def test_a_lab_without_a_rate_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="'None' is not a rate"):
        tiny(one=LAB | {"cap": None}).jobs(1, tmp_path)


def test_jobs_are_ordered_by_seed_and_counts_come_first_and_once(tmp_path: Path):
    counted = {"kind": "describe", "net": "hybrid", "overrides": ["model=vgg19"], "figures": {"parameters": None}}
    wanted = tiny(one={"overrides": TINY}, two={"overrides": [*TINY, "method=hybrid"]}, three=counted)
    found = wanted.jobs(2, tmp_path)
    assert [(job.cell.name, job.seed) for job in found] == [("three", 1), ("one", 1), ("two", 1), ("one", 2), ("two", 2)]
    assert len({job.directory for job in found}) == 5
    assert len({job.record for job in found}) == 5


def test_counting_needs_no_data_and_keeps_the_papers_digits(tmp_path: Path):
    counted = {"kind": "describe", "net": "hybrid", "overrides": ["model=vgg19"], "figures": {"parameters": None}}
    (job,) = tiny(three=counted).jobs(1, tmp_path)
    assert job.run()
    assert job.done
    assert read_json(job.record / RUN)["counted"]["parameters"] == 8370634


def test_several_workers_use_torchrun_and_capped_links_use_the_lab(tmp_path: Path):
    (job,) = tiny(one={"overrides": TINY, "workers": 2}).jobs(1, tmp_path)
    words = job.cell.command(job)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]  # there may be no file torchrun
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert not any(word.startswith("workers=") for word in words)
    (job,) = tiny(one={"overrides": TINY, "workers": 2, "kind": "lab", "cap": "1gbit"}).jobs(1, tmp_path)
    words = job.cell.command(job)
    assert words[2:8] == ["pufferfish_bench.cli.netlab", "--hosts", "2", "--cap", "1gbit", "--"]


def test_a_probe_estimates_the_time_and_leaves_no_files(tmp_path: Path):
    short, long = (tiny(one={"overrides": [*TINY, f"epochs={epochs}"]}).jobs(1, tmp_path)[0] for epochs in (1, 1000))
    assert 0 < probe.probe(short) < 60
    assert probe.probe(long) > 10 * probe.probe(short)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_several_workers_succeeds_on_all_of_them(tmp_path: Path):
    (job,) = tiny(one={"overrides": [*TINY, "dataset.train_images=256"], "workers": 2}).jobs(1, tmp_path)
    words, environment = [*job.cell.command(job), "probe_steps=2"], job.cell.environment()
    tried = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert tried.returncode == 0, tried.stderr
    assert "OMP_NUM_THREADS" not in tried.stderr  # torchrun warns where it has to choose the threads itself
    assert json.loads(tried.stdout.splitlines()[-1])["steps"] == 4  # of two epochs


def test_workers_share_the_cores_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone, many = (tiny(one={"overrides": TINY, "workers": count}).jobs(1, tmp_path)[0] for count in (1, 3))
    monkeypatch.setattr(cores, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "OMP_NUM_THREADS" not in alone.cell.environment()
    assert many.cell.environment()["OMP_NUM_THREADS"] == "2"
    assert cores.environment(9)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert many.cell.environment()["OMP_NUM_THREADS"] == "5"


def test_an_estimate_counts_shared_runs_once_and_names_unknown_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "probe", lambda job: 3600.0 if "model=vgg11" in job.cell.overrides else "no data")
    cells = {"one": {"overrides": TINY}, "two": {"overrides": ["model=vgg19"]}}
    said: list[str] = []
    shared = [job for name in ("table0", "table1") for job in tiny(name, **cells).jobs(3, tmp_path)]
    assert probe.estimate(shared, said.append) == {job.directory: 3600.0 for job in shared if job.cell.name == "one"}
    assert said[:2] == [
        "running the first steps of 2 cells for an estimate; PROBE=0 skips this",
        "  one: about 60 minutes, 3 times",
    ]
    assert said[2] == "  two: unknown: no data"
    assert said[3].startswith("total: about 3 hours, plus the unknown cells;")
    assert probe.estimate([job for job in shared if job.cell.name == "two"], said.append) == {}
    assert said[-1].startswith("total: unknown;")


def test_an_estimate_subtracts_epochs_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "probe", lambda job: 1000.0)
    one, *_, broken = tiny(one={"overrides": TINY}).jobs(3, tmp_path / "records")
    for job in (one, broken):
        job.directory.mkdir(parents=True)
    write_json(one.directory / RUN, {"format": 2, "settings": one.settings, "plan": [{"epochs": [0, 1]}, {"epochs": [1, 4]}]})
    (one.directory / EPOCHS).write_text('{"epoch": 0}\n{"epoch": 1}\n{"epoch": 2}\n')
    (broken.directory / RUN).write_text("{")
    said: list[str] = []
    assert probe.estimate([one, *_, broken], said.append) == {job.directory: 1000.0 for job in (one, *_, broken)}
    assert said[1] == "  one: about 17 minutes, 3 times; 25 % of this is done"
    assert said[2].startswith("total: about 38 minutes;")


def test_a_probe_is_announced_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(probe, "probe", lambda job: float(len(said)))
    assert list(probe.estimate(tiny().jobs(1, tmp_path), said.append).values()) == [1.0]
    assert said[0] == "running the first steps of 1 cell for an estimate; PROBE=0 skips this"


def test_an_estimate_includes_the_lab_and_excludes_runs_finished_for_another_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "probe", lambda job: 60.0)
    found = tiny(one={"overrides": TINY}, slow=LAB, fast=LAB | {"cap": "1gbit"}).jobs(2, tmp_path / "records")
    said: list[str] = []
    assert probe.estimate(found, said.append) == dict.fromkeys([job.directory for job in found], 60.0)
    assert [line.split(":")[0].strip() for line in said[1:4]] == ["one", "slow", "fast"]
    for job in found:
        job.directory.mkdir(parents=True)
        network = {"network": job.links} if job.links else {}
        write_json(job.directory / RUN, {"format": 2, "settings": job.settings, "finished": "now", **network})
    said.clear()
    assert probe.estimate(found, said.append) == {}
    assert said == []


def test_a_probe_that_fails_says_why(tmp_path: Path):
    for workers in (1, 2):
        (job,) = tiny(one={"overrides": ["model=lstm", "dataset=wikitext2"], "workers": workers}).jobs(1, tmp_path)
        assert str(probe.probe(job)).startswith("WikiText-2 is not in ")


def test_a_process_that_dies_without_an_answer_is_quoted():
    assert probe.last_line("netlab: needs root\n\n") == "netlab: needs root"
    assert probe.last_line("KeyError: 'x'\n=====\n-----\n") == "KeyError: 'x'"
    assert probe.last_line("=====\n") == "its first steps failed without a message"


def test_a_probe_that_takes_too_long_ends_its_workers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launcher = (  # like torchrun: its worker has its own session, and SIGTERM ends both
        "import pathlib, signal, subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "def end(*_):\n    worker.terminate()\n    worker.wait()\n    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('worker').write_text(str(worker.pid))\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(TrainRun, "command", lambda cell, job: [sys.executable, "-c", launcher])
    monkeypatch.setattr(probe, "PATIENCE", 3)
    (job,) = tiny().jobs(1, tmp_path)
    assert probe.probe(job) == "4 steps take more than 3 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("worker").read_text()), 0)


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervision, "GRACE", 0.2)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    child.stdout.readline()
    supervision.end(child)
    assert child.returncode == -signal.SIGKILL


def test_the_paper_profile_without_a_gpu_is_refused_before_the_probe(tmp_path: Path):
    refused = reproduce("table9", "--profile", "paper", "--seeds", "1")
    assert refused.returncode == 2
    assert "3 of 3 runs are missing" in refused.stdout
    assert "running the first steps" not in refused.stdout  # it would take minutes in vain
    assert "or CONFIRM=1 to run it" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_failed_cells_are_named_and_do_not_stop_the_others(tmp_path: Path):
    failed = reproduce("table9", "--profile", "cpu", "--seeds", "1", "--no-probe")
    assert failed.returncode == 1
    assert "run 3 of 3" in failed.stdout
    assert "failed: table9/vanilla/seed1, table9/without_warmup/seed1, table9/with_warmup/seed1" in failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_run_once_and_the_run_is_waited_for(tmp_path: Path, number: int):
    run = (
        "import pathlib, signal, time\n"
        "heard = []\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda number, frame: heard.append(number))\n"
        "pathlib.Path('ready').touch()\n"
        "while not heard: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"  # writes a checkpoint
        "pathlib.Path('heard').write_text(str(len(heard)))\n"
    )
    attend = (
        "import sys\nfrom pufferfish_bench.paper import supervision\n"
        f"try: supervision.attend([sys.executable, '-c', {run!r}])\nexcept supervision.Stop: sys.exit(7)"
    )
    runner = subprocess.Popen([sys.executable, "-c", attend], start_new_session=True)
    deadline = time.monotonic() + 60
    while not Path("ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(runner.pid, number)  # as a terminal does
    assert runner.wait(timeout=60) == 7
    assert Path("heard").read_text() == "1"


def test_a_cell_after_one_that_fails_is_run_and_kept(put_tables, capsys: pytest.CaptureFixture):
    put_tables("table0", bad={"overrides": [*TINY, "epochs=0"]}, good={"overrides": [*TINY, "epochs=1"]})
    assert reproducer.main(["table0", "--profile", "smoke", "--no-probe"]) == 1
    assert not Path("results/records/smoke/table0/bad").exists()
    assert "finished" in read_json(Path("results/records/smoke/table0/good/seed1") / RUN)
    assert Path("results/tables/smoke/table0.md").exists()
    assert capsys.readouterr().err.splitlines()[-1].startswith("failed: table0/bad/seed1;")


@pytest.mark.parametrize("error", [InputError("no data"), OSError(28, "full", "there"), FileNotFoundError("no program")])
def test_failed_runs_are_listed_last_even_if_the_report_fails(
    put_tables, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def run(job: Job) -> bool:
        if job.cell.name == "bad":
            raise error
        return True

    monkeypatch.setattr(Job, "run", run)
    put_tables("table0", bad={"overrides": TINY}, good={"overrides": [*TINY, "epochs=1"]})
    put_tables("table1", other={"overrides": TINY})
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


def test_only_the_requested_cells_are_run(put_tables, monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []
    monkeypatch.setattr(Job, "run", lambda job: bool(ran.append(job.name)))
    one, two, three, four = ({"overrides": [*TINY, f"epochs={epochs}"]} for epochs in (1, 2, 3, 4))  # runs of their own
    put_tables("table0", vanilla_fp32=one, vanilla_amp=two, low_rank_fp32=three)
    put_tables("table1", other=four)
    words = ["table0", "table1", "--profile", "smoke", "--no-probe"]
    reproducer.main([*words, "--cells", "*fp32"])
    assert ran == ["table0/vanilla_fp32/seed1", "table0/low_rank_fp32/seed1"]
    ran.clear()
    reproducer.main([*words, "--cells", "oth?r", "--cells", "*amp"])
    assert ran == ["table0/vanilla_amp/seed1", "table1/other/seed1"]
    there = "table0 has vanilla_fp32, vanilla_amp, low_rank_fp32; table1 has other"
    with pytest.raises(
        InputError, match=rf"CELLS=fp32 matches no cell \(did you mean vanilla_fp32 or low_rank_fp32\?\): {there}"
    ):
        reproducer.main([*words, "--cells", "*fp32", "--cells", "fp32"])


def test_a_stopped_table_continues_where_it_was(put_tables, tmp_path: Path):
    small = ["model=vgg11", "model.net.width=0.05", "dataset.train_images=64", "dataset.test_images=10"]
    put_tables("table0", short={"overrides": [*small, "epochs=1"]}, long={"overrides": [*small, "epochs=12"]})
    program = (
        "import pathlib, runpy\nfrom pufferfish_bench.paper import tables\ntables.folder = lambda: pathlib.Path('tables')\n"
        "runpy.run_module('pufferfish_bench.cli.reproduce', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "table0", "--profile", "smoke", "--no-probe"]
    short, long = tables.read("table0", "smoke").jobs(1, tmp_path / "results" / "records")
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not read_rows(long.directory / EPOCHS) and stopped.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(stopped.pid, signal.SIGINT)
    _, complaint = stopped.communicate(timeout=120)
    assert stopped.returncode == 128 + signal.SIGINT, complaint
    assert complaint.splitlines()[-1] == "stopped; run the same command to continue"
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
    assert len(read_json(long.record / RUN)["machine_load"]) == 2  # of both sittings
    assert len(read_json(short.record / RUN)["machine_load"]) == 1


def test_the_gap_against_the_budget_runs_at_toy_size(put_tables, tmp_path: Path, capsys: pytest.CaptureFixture):
    """The published table with tiny runs, and only a part of it: the rest is shown as not run."""
    whole = yaml_files.read(REPOSITORY / "conf" / "table" / "figure_budget.yaml")
    toy = ["model.net.width=0.05", "dataset.train_images=64", "dataset.test_images=10"]
    OmegaConf.save(OmegaConf.create(whole | {"by_profile": {"smoke": toy}}), tmp_path / "tables" / "figure_budget.yaml")
    assert reproducer.main(["figure_budget", "--profile", "smoke", "--no-probe", "--cells", "resnet18_*_x05"]) == 0
    kept = [read_json(path) for path in sorted(Path("results/records/smoke/figure_budget").glob(f"*/seed1/{RUN}"))]
    assert [(record["settings"]["epochs"], record["plan"][-1]["phase"]) for record in kept] == [(2, "low_rank"), (2, "train")]
    printed = capsys.readouterr().out
    assert "ResNet-18: not enough to say" in printed
    sheet = Path("results/figures/smoke/figure_budget.md").read_text()
    assert re.search(r"\| ResNet-18 \| 0\.5x \| 2 \| 128 \| [\d.]+ \| [\d.]+ \| [+-][\d.]+ \|", sheet)
    assert "| VGG-19 | 4x |  |  | not run | not run |" in sheet
    assert Path("results/figures/smoke/figure_budget.png").exists()
