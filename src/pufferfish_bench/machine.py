"""The conditions of a run: code, versions, hardware, memory."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pufferfish_bench import processors

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def environment(device: torch.device) -> dict[str, Any]:
    """The conditions of a run: code, versions, hardware."""
    cuda = device.type == "cuda"
    return {
        **code_version(),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("pufferfish-bench", "torch", "torchvision", "hydra-core")},
        "hardware": {
            "kind": device.type,
            "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
            "platform": platform.platform(),
            "cores": processors.cores(),
            "workers": processors.workers(),
            "threads": torch.get_num_threads(),
            "onednn_limit": os.environ.get("ONEDNN_MAX_CPU_ISA"),
        },
    }


def code_version() -> dict[str, Any]:
    """The commit this package runs from and whether the tree differs from it; None for an installed wheel."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str | None:
        if not (root / "setup.cfg").exists():  # a wheel, perhaps installed inside somebody else's repository
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


def free_memory(root: Path = Path("/")) -> int:
    """Memory that can still be had, in bytes: the system's, or what is left of a container's limit if that is less."""
    left = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    information, group = root / "proc/meminfo", root / "sys/fs/cgroup"
    if information.exists():
        left += [int(line.split()[1]) * 1024 for line in information.read_text().splitlines() if line.startswith("MemAvailable")]
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        if (group / limit).exists() and (most := (group / limit).read_text().strip()) != "max":
            left.append(int(most) - int((group / used).read_text()))
    return min(left)


def hold_on_to_memory() -> None:
    """Let glibc keep what is freed: the large tensors of a step on a CPU would otherwise be fetched anew from the system, page
    by page, at every step. Elsewhere this does nothing."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_MAX, 0)
    except (OSError, AttributeError):  # another system or another C library
        pass


def forget_peak_memory(device: torch.device) -> None:
    """Measure the peak anew, where that can be done: the peak of a process on a CPU only grows."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """The most memory held so far, in bytes: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux
