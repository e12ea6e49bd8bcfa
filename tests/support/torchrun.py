"""Start two ranks on this machine with torchrun."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.repository import REPOSITORY

RANKS = 2
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
TINY = ("profile=smoke", "model.net.width=0.05", "dataset.train_images=48", "dataset.test_images=10", "batch_size=8", "epochs=2")


def environment() -> dict[str, str]:
    """The environment without PUFFERFISH_DATA, with the repository on Python's path."""
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return {key: value for key, value in os.environ.items() if key != "PUFFERFISH_DATA"} | {"PYTHONPATH": paths}


def run_ranks(folder: Path, *words: str, timeout: float = 300) -> subprocess.CompletedProcess:
    """Run `python -m WORDS` in two ranks to its end."""
    return subprocess.run(
        [*TORCHRUN, "-m", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout
    )  # fmt: skip
