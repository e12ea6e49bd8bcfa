"""Whole runs on folders of pictures, with worker processes: stopped, resumed, and with damaged files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pufferfish_bench.records import run_directory
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from tests.support.commands import Command, assert_same_run, interrupt
from tests.support.pictures import CLASSES, cut_short

RUN_SETTINGS = (
    "model=resnet50", "method=pufferfish", "profile=cpu", "model.net.width=0.05", "epochs=4", "warmup_epochs=1", "batch_size=2",
    "dataset.folder=pictures", "dataset.classes=3", "dataset.image_size=40",
)  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_run_with_workers_stopped_in_the_middle_resumes_at_once_to_the_same_end(
    root: Path, invoke: Command, arguments, tmp_path: Path, number: int
):
    settings = (*RUN_SETTINGS, f"data_root={root}")
    assert invoke(*settings, "dataset.loader.cache=true", "dataset.loader.workers=0", "run_dir=whole").returncode == 0
    workers = ("dataset.loader.cache=false", "dataset.loader.workers=2", "run_dir=stopped")
    # Ctrl-C and schedulers signal the worker processes too; after a kill they live on, and must not hold the directory
    stopped = interrupt(
        arguments(*settings, *workers), tmp_path, number, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 2,
        to_all=number != signal.SIGKILL,
    )  # fmt: skip
    assert stopped.returncode == (-number if number == signal.SIGKILL else 128 + number), stopped.stderr
    assert "Traceback" not in stopped.stderr
    finished = invoke(*settings, *workers)
    assert finished.returncode == 0, finished.stderr
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    assert read_json(tmp_path / "stopped" / RUN)["data"]["workers"] == 2


def test_a_damaged_picture_is_reported_on_the_terminal_and_the_run_continues(root: Path, invoke: Command):
    broken = root / "pictures" / "train" / CLASSES[1] / f"{CLASSES[1]}_3.JPEG"
    cut_short(broken)
    settings = (*RUN_SETTINGS, f"data_root={root}", "method=vanilla", "epochs=1")
    finished = invoke(*settings, "dataset.loader.tolerated_unreadable=0.1")
    assert finished.returncode == 0
    assert f"warning: {broken} cannot be read and is left out: " in finished.stderr
    refused = invoke(*settings, "run_dir=again")
    assert refused.returncode == 2
    assert "1 of 21 pictures cannot be read" in refused.stderr


def test_workers_and_cache_are_outside_a_runs_identity_and_what_changes_pixels_is_inside(root: Path, invoke: Command):
    settings = (*RUN_SETTINGS, f"data_root={root}", "method=vanilla", "epochs=1")
    conditions = (
        "dataset.loader.workers=1",
        "dataset.loader.cache=false",
        "dataset.loader.prefetch=9",
        "dataset.loader.tolerated_unreadable=0.5",
    )
    conditions += ("dataset.loader.max_megapixels=50",)
    ways = (
        (),
        *((condition,) for condition in conditions),
        ("dataset.image_size=41",),
        ("dataset.decode=scaled", "dataset.loader.cache=false"),
    )
    headers = [invoke(*settings, *way).stdout.splitlines()[0] for way in ways]
    assert len(set(headers[:-2])) == 1
    assert len(set(headers[-3:])) == 3


def test_decode_is_checked_before_a_run_and_suggested_where_it_is_looked_for(invoke: Command):
    for setting, words in (
        ("dataset.loader.decode=scaled", "there is no setting dataset.loader.decode; did you mean dataset.decode=scaled"),
        ("dataset.decode=fast", "dataset.decode=fast: one of exact, scaled is expected"),
    ):
        refused = invoke("model=resnet50", setting)
        assert refused.returncode == 2
        assert words in refused.stderr


def test_a_worker_that_outlives_its_run_does_not_hold_the_directory(tmp_path: Path):
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom pufferfish_bench.records.run_directory import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        os.close(1)\n        time.sleep(60)\n"
        "    print(child, flush=True)\n    os.kill(os.getpid(), 9)"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert finished.returncode == -signal.SIGKILL
    try:
        with run_directory.exclusive(tmp_path):
            pass
    finally:
        os.kill(int(finished.stdout), signal.SIGKILL)
