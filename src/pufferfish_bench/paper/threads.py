"""The number of threads that a run computes with. Sums have another order with another number, and so other rounding errors,
which grow during training: runs of one cell should have the same."""

import os
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench.base import cores
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.placement import Machine
from pufferfish_bench.paper.work import Work
from pufferfish_bench.records.files import RUN, read_json


def of_new_run(work: Work, machine: Machine) -> int:
    """The threads that each worker of a run will have on a machine without GPUs."""
    if given := os.environ.get("OMP_NUM_THREADS"):
        return int(given.split(",")[0])
    if machine.jobs == 1 and work.cell.workers == 1:
        import torch  # its default, which the run will have too

        return torch.get_num_threads()
    at_a_time = 1 if work.cell.measures_time else machine.jobs
    return max(1, cores.cores() // at_a_time // work.cell.workers)


def of_record(job: Job) -> int | None:
    """The threads that each worker of a finished run had on a CPU; None if its record does not say, or it had a GPU."""
    hardware = read_json(job.record / RUN).get("hardware", {})
    return hardware.get("threads") if hardware.get("kind") == "cpu" else None


def changes(works: Sequence[Work], done: Sequence[Job], machine: Machine) -> list[str]:
    """A sentence if cells have records of another number of threads than their missing runs will have."""
    if machine.has_gpus or machine.is_cluster:
        return []
    before: dict[Path, set[int]] = {}
    for job in done:
        before.setdefault(job.record.parent, set()).update({of_record(job)} - {None})
    found = {}
    for work in works:
        for job in work.jobs if work.cell.gpus else ():  # the network lab shares out the cores itself
            now, there = of_new_run(work, machine), before.get(job.record.parent, set())
            if there - {now}:
                found[f"{job.record.parent.parent.name}/{job.record.parent.name}"] = f"{min(there - {now})}, now {now}"
    cells = "; ".join(f"{name} (before: {counts})" for name, counts in found.items())
    advice = "OMP_NUM_THREADS sets it, and with the same number records are comparable to the last bit"
    return [f"rounding depends on the number of threads, and that changes for runs of {cells}; {advice}"] if cells else []
