"""The cores of this machine and how workers share them. Known without torch, which takes a second."""

import os


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(workers: int) -> dict[str, str]:
    """For workers that share this machine: each gets its part of the cores, unless the user says how many threads."""
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers)), **os.environ}
