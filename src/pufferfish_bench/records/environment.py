"""The conditions of a run: code version, library versions, hardware."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pufferfish_bench.base import cores


def environment(device: torch.device) -> dict[str, Any]:
    """What run.json records about the code, the libraries and the hardware."""
    cuda = device.type == "cuda"
    return {
        **code_version(),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("pufferfish-bench", "torch", "torchvision", "hydra-core")},
        "hardware": {
            "kind": device.type,
            "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
            "platform": platform.platform(),
            "cores": cores.cores(),
            "workers": cores.workers(),
            "threads": torch.get_num_threads(),
            "tf32": tf32_in_use(device),
            "onednn_limit": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        },
    }


def tf32_in_use(device: torch.device) -> bool:
    """Whether float32 products on this device are computed in TF32, which older GPUs do not have."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return device.type == "cuda" and allowed and has_tf32(torch.cuda.get_device_capability(device))


def has_tf32(capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability has TF32: from Ampere on."""
    return capability >= (8, 0)


def code_version() -> dict[str, Any]:
    """The commit that this package runs from, and whether src/ or conf/ has uncommitted changes; None for an installed wheel."""
    root = Path(__file__).parents[3]

    def git(*arguments: str) -> str | None:
        if not (root / "setup.cfg").exists():  # an installed wheel, perhaps inside another repository
            return None
        command = ["git", "-C", str(root), *arguments]
        try:
            finished = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return finished.stdout.strip() if finished.returncode == 0 else None

    changes = git("status", "--porcelain", "--", "src", "conf")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
