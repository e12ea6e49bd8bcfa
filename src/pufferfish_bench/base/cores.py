"""The CPU cores of this machine and how workers share them. Does not import torch, which takes a second."""

import json
import os

LAB = "PUFFERFISH_NETWORK"  # environment variable in which the lab describes its network
SHARE = "PUFFERFISH_CORES"  # environment variable: use no more than so many cores, because other runs use the rest
SLURM = "SLURM_CPUS_PER_TASK"  # what Slurm gives to each task, also on clusters that do not bind tasks to cores


def cores() -> int:
    """Number of cores that this process may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(here, *(int(os.environ.get(name) or here) for name in (SHARE, SLURM))))


def environment(workers: int) -> dict[str, str]:
    """For workers that share this machine: each gets its part of the cores, unless the user says how many threads."""
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers)), **os.environ}


def per_worker() -> int:
    """The cores that each worker on this machine has, at least one."""
    return max(1, cores() // workers())


def workers() -> int:
    """Processes of this run on this machine: torchrun counts those of a host, and a lab has all its hosts on one machine."""
    lab = json.loads(os.environ.get(LAB, "{}"))
    return lab.get("hosts", 1) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
