"""What is trained: a run with all the jobs that need it. Tables have runs in common, and each is trained once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.placement import Machine, Need
from pufferfish_bench.records import reader

if TYPE_CHECKING:
    from pufferfish_bench.paper.cells import TrainRun


@dataclass(frozen=True, eq=False)  # each is itself only: a key of what is trained
class Work:
    """A run directory to train in, and the jobs whose records come from it; the first job stands for all."""

    jobs: tuple[Job, ...]

    @property
    def job(self) -> Job:
        return self.jobs[0]

    @property
    def cell(self) -> "TrainRun":
        return self.job.cell

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def directory(self) -> Path:
        return self.job.directory

    def need(self, machine: Machine) -> Need:
        """What the run occupies there: a GPU for each worker; without GPUs, one part of the cores."""
        slots = self.cell.gpus if machine.has_gpus else 1
        return Need(slots, alone=not machine.is_cluster and (self.cell.measures_time or not slots))


def grouped(jobs: Sequence[Job]) -> list[Work]:
    """The runs that these jobs need, in order. If one of a run's jobs measures time, it stands for the run."""
    found: dict[Path, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.directory, []).append(job)
    return [Work(tuple(sorted(same, key=lambda job: not job.cell.measures_time))) for same in found.values()]


def longest_first(works: Sequence[Work], machine: Machine) -> list[Work]:
    """The order in which to train several runs at a time: if the longest came last, it would be trained alone at the end.

    Runs whose hours are not known come last, in the order of the tables, which one run at a time keeps too.
    """
    if machine.jobs == 1 or machine.is_cluster:
        return list(works)
    return sorted(works, key=lambda work: -(work.cell.hours or 0.0))


def is_left(job: Job) -> bool:
    """Whether there is something to train. A directory that has to be refused is refused later, when it is the job's turn."""
    try:
        return job.directory is not None and not job.trained
    except InputError:
        return True


def share_left(job: Job) -> float:
    """The share of a run's epochs that is still to be trained; 1 if nothing can be read."""
    try:
        with reader.asking(job.directory):
            record, rows = reader.read_run(job.directory), reader.read_rows(job.directory, needs=("epoch",))
            return max(0.0, 1 - len(rows) / record["plan"][-1]["epochs"][1])
    except (OSError, InputError):
        return 1.0
