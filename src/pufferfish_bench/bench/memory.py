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

import torch
from torch import Tensor, nn

from pufferfish_bench.bench import as_in_a_run
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows

QUICK = {"rounds": 1, "batch_size": 64, "width": 0.5}
PAUSE = 0.02  # seconds between two looks at the record


def measure(
    *, rounds: int = 3, batch_size: int = 128, width: float = 1.0, steps: int = 2, later_epochs: int = 4
) -> tuple[list[Row], dict[str, Any]]:
    """ResNet-18 on synthetic images, `steps` steps per epoch; `width` multiplies its width.

    `later_epochs` follow the switch: enough to stop the run in the first of them.
    """
    sizes = (
        *("model=resnet18", "profile=smoke", f"model.net.width={width}", "warmup_epochs=1", f"batch_size={batch_size}"),
        *(f"dataset.train_images={steps * batch_size}", "dataset.test_images=50", "dataset.test_batch_size=50"),
        *("device=cpu", "schedule.milestones=[]"),
    )
    last: dict[str, list[dict[str, Any]]] = {"hybrid": [], "vanilla": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            last["vanilla"].append(trained(Path(directory) / "vanilla", [*sizes, "method=vanilla", "epochs=2"]))
            words = [*sizes, "method=pufferfish", f"epochs={1 + later_epochs}"]
            last["hybrid"].append(trained_after_switch(Path(directory) / "hybrid", words))
    peaks = {name: [epoch["peak_memory"] for epoch in epochs] for name, epochs in last.items()}
    hybrid, vanilla = (3 * 4 * epochs[0]["parameters"] / 1e6 for epochs in last.values())  # float32
    nets = as_in_a_run.nets("model=resnet18", f"model.net.width={width}")
    images, _ = as_in_a_run.images(batch_size, 32, nets.settings["net"]["classes"])
    kept = {name: saved_bytes(model, images) for name, model in nets.named().items()}
    note = (
        f"ResNet-18, batch {batch_size}, real runs. The peak of a process only grows, so the run was stopped after its switch "
        "and resumed: the new process trains the hybrid net only. Parameters, gradients and momentum are "
        f"{hybrid:.0f} MB of it, against {vanilla:.0f} MB; tensors saved for the backward pass {kept['hybrid'] / 1e6:.0f} MB, "
        f"against {kept['vanilla'] / 1e6:.0f} MB: a low-rank layer also saves the output of its first factor. Together "
        f"{hybrid + kept['hybrid'] / 1e6:.0f} against {vanilla + kept['vanilla'] / 1e6:.0f} MB; the rest is the program, working "
        "memory of the layers, and freed memory in pieces that fit nothing else: a run on a CPU keeps it, which is faster."
    )
    return [compare("memory", *peaks.items(), unit="B", note=note)], {"peak_bytes": peaks, "saved_bytes": kept}


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes of the tensors that a forward pass saves for the backward pass, the parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.train()(images)  # holds what was saved until the end of this function
    assert output.requires_grad
    return sum(size for address, size in sizes.items() if address not in own)


def command(run: Path, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pufferfish_bench", *words, f"run_dir={run}"]


def trained(run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Train or resume a run; return its last row."""
    subprocess.run(command(run, words), check=True, capture_output=True)
    return read_rows(run / EPOCHS)[-1]


def trained_after_switch(run: Path, words: Sequence[str]) -> dict[str, Any]:
    """The same, by a process that resumes after the switch."""
    process = subprocess.Popen(command(run, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while process.poll() is None and not switched(run):
        time.sleep(PAUSE)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    if process.returncode != 128 + signal.SIGTERM:
        raise RuntimeError(f"the run ended with code {process.returncode} instead of stopping after its switch: {output}")
    return trained(run, words)


def switched(run: Path) -> bool:
    return (run / RUN).exists() and bool(read_json(run / RUN).get("operations"))
