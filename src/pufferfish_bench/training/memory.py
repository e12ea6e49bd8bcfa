"""Memory of this process and its device: free memory, peak memory, and what glibc does with freed memory."""

import ctypes
import os
import resource
import sys
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def free_memory(root: Path = Path("/")) -> int:
    """Available memory in bytes: of the system, or what is left of a container's limit if that is less."""
    left = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    information, group = root / "proc/meminfo", root / "sys/fs/cgroup"
    if information.exists():
        left += [int(line.split()[1]) * 1024 for line in information.read_text().splitlines() if line.startswith("MemAvailable")]
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        if (group / limit).exists() and (most := (group / limit).read_text().strip()) != "max":
            left.append(int(most) - int((group / used).read_text()))
    return min(left)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory. Otherwise the large tensors of a step on a CPU are requested from the system again, page by
    page, at every step. With other C libraries this does nothing."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_MMAP_MAX, 0)
    except (OSError, AttributeError):  # another system or another C library
        pass


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak where possible: the peak of a process on a CPU only grows."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux
