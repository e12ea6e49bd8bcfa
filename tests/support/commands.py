"""Runs of the command line: small settings, interrupting a process, comparing two finished runs."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pufferfish_bench.training import checkpoints
from tests.support.training import record

Command = Callable[..., subprocess.CompletedProcess]

# Small enough for a second, long enough to be killed in the middle: 4 epochs of 25 steps.
DATA = ("dataset.train_images=400", "dataset.test_images=50", "batch_size=16")
SMALL = ("profile=smoke", "model.net.width=0.05", *DATA)
QUICK = (*SMALL, "run_dir=run")
SMALL_TEXT = {
    "lstm": ("profile=smoke", "model.net.hidden=16", "dataset.train_words=2000", "dataset.test_words=200"),
    "transformer": ("profile=smoke", "model.net.width=16", "dataset.train_pairs=60", "dataset.test_pairs=5"),
}


def final_state(directory: Path) -> dict[str, Any]:
    """What the newest checkpoint of a run holds."""
    saved = checkpoints.read(sorted((directory / "checkpoints").glob("*.pt"))[-1])
    return saved["shared"] | saved["local"]


def assert_same_run(one: Path, other: Path) -> None:
    """Check that two runs have bit-identical weights and equal records, apart from measured times and memory."""
    weights, others = (final_state(directory)["model"] for directory in (one, other))
    assert weights.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    assert record(one) == record(other)


def interrupt(
    words: list[str], directory: Path, number: int, ready: Callable[[], bool], *, to_all: bool = False
) -> subprocess.CompletedProcess:
    """Start a process, signal it once `ready` (with `to_all` its whole group, as a terminal does), and wait for its end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=directory, start_new_session=True, **pipes)
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    (os.killpg if to_all else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)
