"""Peak memory of real runs: one that has switched to the hybrid net, against a vanilla one.

The peak of a process only grows, and before the switch a run is a vanilla run. So the run is stopped after its switch and
resumed: the second process trains the hybrid net only.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows

QUICK = {"rounds": 1, "batch_size": 64, "width": 0.5}
PAUSE = 0.02  # seconds between two looks at the record
LATER_EPOCHS = 4  # after the switch: enough to be stopped in the first ones


def measure(*, rounds: int = 1, batch_size: int = 128, width: float = 1.0, steps: int = 2) -> tuple[list[Row], dict[str, Any]]:
    """ResNet-18 on synthetic images, `steps` steps per epoch; `width` multiplies its width."""
    sizes = (
        *("model=resnet18", "profile=smoke", f"model.net.width={width}", "warmup_epochs=1", f"batch_size={batch_size}"),
        *(f"dataset.train_images={steps * batch_size}", "dataset.test_images=50", "dataset.test_batch_size=50"),
        *("device=cpu", "schedule.milestones=[]"),
    )
    peaks: dict[str, list[float]] = {"hybrid": [], "vanilla": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            peaks["vanilla"].append(vanilla_peak(Path(directory) / "vanilla", [*sizes, "method=vanilla", "epochs=2"]))
            words = [*sizes, "method=pufferfish", f"epochs={1 + LATER_EPOCHS}"]
            peaks["hybrid"].append(peak_after_switch(Path(directory) / "hybrid", words))
    note = (
        f"ResNet-18, batch {batch_size}, real runs. The peak of a process only grows, so the run was stopped after its switch "
        "and resumed: the new process trains the hybrid net only."
    )
    return [compare("memory", *peaks.items(), unit="B", note=note)], {"peak_bytes": peaks}


def command(run: Path, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pufferfish_bench", *words, f"run_dir={run}"]


def vanilla_peak(run: Path, words: Sequence[str]) -> int:
    subprocess.run(command(run, words), check=True, capture_output=True)
    return read_rows(run / EPOCHS)[-1]["peak_memory"]


def peak_after_switch(run: Path, words: Sequence[str]) -> int:
    """The peak of a process that resumes after the switch and trains to the end."""
    process = subprocess.Popen(command(run, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and not switched(run):
        time.sleep(PAUSE)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    if process.returncode != 128 + signal.SIGTERM:
        raise RuntimeError(f"the run ended with code {process.returncode} instead of stopping after its switch: {output}")
    subprocess.run(command(run, words), check=True, capture_output=True)
    return read_rows(run / EPOCHS)[-1]["peak_memory"]


def switched(run: Path) -> bool:
    return (run / RUN).exists() and bool(read_json(run / RUN).get("operations"))
