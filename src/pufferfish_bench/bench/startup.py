"""How long the command line takes to show a config, against importing Hydra alone: whole processes."""

import os
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.row import Row, compare

QUICK = {"rounds": 4}


def run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"HYDRA_FULL_ERROR": "1"})


def measure(*, rounds: int = 15) -> tuple[list[Row], dict[str, Any]]:
    installed = Path(sysconfig.get_path("scripts")) / "pufferfish-run"
    command = [str(installed)] if installed.exists() else [sys.executable, "-m", "pufferfish_bench"]
    work = {
        "pufferfish-run --cfg job": partial(run, [*command, "--cfg", "job"]),
        'python -c "import hydra"': partial(run, [sys.executable, "-c", "import hydra"]),
    }
    taken = interleaved.seconds(work, rounds=rounds)
    return [compare("startup", *taken.items(), note="Whole processes; the first imports no torch.")], {"seconds": taken}
