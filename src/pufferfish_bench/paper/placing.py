"""Where the runs of tables are trained: the machine that is used, what a run needs there, and what to do if it does not fit."""

import os
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.cells import TrainRun
from pufferfish_bench.paper.placement import Machine
from pufferfish_bench.paper.work import Work


def gpus_here() -> tuple[str, ...]:
    """The names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES takes them."""
    import torch  # takes a second

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:count]) if named else numbers(count)


def numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def machine_for(works: Sequence[Work], *, gpus: int | None, jobs: int | None, launcher: str | None) -> Machine:
    """The machine to use: `jobs` runs at a time, by default one per GPU, or one without GPUs.

    `gpus` pretends that there are so many. Without runs to train, nobody looks for GPUs.
    """
    for name, count, least in (("JOBS", jobs, 1), ("GPUS", gpus, 0)):
        if count is not None and count < least:
            raise InputError(f"{name}={count} must be at least {least}")
    if launcher == "slurm":  # the cluster decides when a run starts, and where
        return Machine(numbers(len(works)), len(works), is_cluster=True)
    looks = gpus is None and works
    found = gpus_here() if looks else numbers(gpus or 0)
    count = 1 if launcher == "debug" else jobs or len(found) or 1
    return Machine(found or numbers(count), count, has_gpus=bool(found))


def default_launcher(machine: Machine) -> str:
    """In this process if there is only one place for a run, so that what it prints is seen at once."""
    return "local" if machine.has_gpus or machine.jobs > 1 else "debug"


def most_workers(batch: int, limit: int) -> int:
    """The most workers, up to `limit`, that share a global batch equally."""
    return next(count for count in range(limit, 0, -1) if batch % count == 0)


def with_at_most(cell: TrainRun, limit: int) -> TrainRun:
    """A cell with no more than `limit` workers, at the global batch of its recipe; unchanged if the recipe names none."""
    if cell.workers <= limit or not cell.global_batch:
        return cell
    return cell.with_workers(most_workers(cell.global_batch, limit))


def hours(works: Sequence[Work]) -> dict[Path, float]:
    """The estimates of the tables (`hours` in conf/table), by the directory of the run."""
    return {work.directory: work.cell.hours for work in works if work.cell.hours is not None}


def lacking(works: Sequence[Work], machine: Machine) -> list[Work]:
    """The runs that need more GPUs than there are."""
    return [work for work in works if not machine.fits(work.need(machine))]


def advice(works: Sequence[Work], machine: Machine) -> list[str]:
    """What to do about the cells that cannot be placed on the machine: a line for each table and kind of cell."""
    here = len(machine.slots)
    found: dict[tuple[str, int, int | None], list[str]] = {}
    for work in lacking(works, machine):
        table, cell, *_ = work.name.split("/")
        names = found.setdefault((table, work.need(machine).slots, work.cell.global_batch), [])
        if cell not in names:
            names.append(cell)
    return [f"cannot be placed here: {line(*kind, names, here)}" for kind, names in found.items()]


def line(table: str, slots: int, batch: int | None, cells: Sequence[str], here: int) -> str:
    """What is missing, and what to do."""
    if batch:
        way = f"MAX_WORKERS={here} trains at the global batch of {batch} on {most_workers(batch, here)} of them"
    else:
        out = " ".join(f"!{table}/{cell}" for cell in cells)
        way = f"MAX_WORKERS cannot help, because the batch is one of each worker; CELLS='{out}' leaves them out"
    ways = f"{way}; LAUNCHER=slurm trains on several machines of a cluster"
    return f"{table}: {', '.join(cells)}: {slots} GPUs are needed and there are {here}; {ways}"


def remedies(works: Sequence[Work], machine: Machine) -> tuple[int | None, list[str]]:
    """With which MAX_WORKERS, if any, and which patterns for CELLS all that is left can be placed on the machine."""
    short = lacking(works, machine)
    limit = len(machine.slots) if any(work.cell.global_batch for work in short) else None
    out = ["!" + "/".join(work.name.split("/")[:2]) for work in short if not work.cell.global_batch]
    return limit, list(dict.fromkeys(out))
