"""The cells of a table. A cell knows the settings that identify its records, how it is run, and the verdict on its numbers."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pufferfish_bench.base import cores
from pufferfish_bench.base.console import PART_OF_MANY
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import build
from pufferfish_bench.distributed.units import bits_per_second
from pufferfish_bench.paper import budget, machine_lock, run_lock, verdicts
from pufferfish_bench.paper.jobs import Identity, Job
from pufferfish_bench.paper.nodes import PATIENCE, Nodes
from pufferfish_bench.paper.numbers import PaperNumber
from pufferfish_bench.paper.quantities import Quantity, quantity
from pufferfish_bench.paper.specifications import Comparison
from pufferfish_bench.paper.supervision import attend
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.records import machine_load
from pufferfish_bench.records.files import RUN, keep, now, write_json
from pufferfish_bench.records.reader import FORMAT
from pufferfish_bench.records.record import COUNTED, Record


@cache  # cells of the lab differ in their links only, and tables have runs in common; composing takes half a second
def identified(overrides: tuple[str, ...], seeds: tuple[int, ...]) -> list[tuple[Path, dict[str, Any]]]:
    return build.identify(overrides, seeds)


@dataclass(frozen=True, kw_only=True)
class Cell(ABC):
    """One experiment of a table, and which of its numbers are compared with which of the paper's."""

    has_seeds: ClassVar[bool] = True  # False: there is one record, whatever the seeds

    name: str
    figures: Mapping[str, str | None]  # quantity -> key of its number in paper/numbers.yaml; None: the paper has none
    line: str | None = None  # the row of `cells` that this cell comes from, where the table has `over`: a line of its picture
    sizes: Mapping[str, int] = field(default_factory=dict)  # variables of the paper's formulas

    @property
    def label(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return self.name.replace("_", " ") + (f" ({sizes})" if sizes else "")

    @property
    def measures_time(self) -> bool:
        """Whether nothing else of ours may run beside this cell."""
        return any(quantity(name).is_time for name in self.figures)

    def comparisons(self, records: Sequence[Record]) -> list[Comparison]:
        """What the paper prints about this cell besides numbers, line by line, compared with ours."""
        return []

    def jobs(self, seeds: Sequence[int], folder: Path) -> list[Job]:
        """One job for each identity; records are kept in `folder`/<cell>/seed<n>/."""
        found = zip(seeds, self.identity(seeds), strict=False)  # a cell without seeds has one identity
        return [Job(self, seed, folder / self.name / f"seed{seed}", identity) for seed, identity in found]

    @abstractmethod
    def identity(self, seeds: Sequence[int]) -> list[Identity]:
        """What makes the run of each seed the run it is."""

    @abstractmethod
    def run(self, job: Job) -> bool:
        """Do the work of a job and keep its record; whether that succeeded."""

    @abstractmethod
    def verdict(
        self, quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
    ) -> str:
        """How our number compares with the paper's."""


@dataclass(frozen=True, kw_only=True)
class TrainRun(Cell):
    """A training with pufferfish-run, with torchrun if there are several workers."""

    overrides: tuple[str, ...]
    workers: int = 1
    hours: float | None = None  # of a run on its number of V100s, estimated
    nodes: Nodes | None = None  # the machines of a cluster that train it together; None: this one

    @property
    def gpus(self) -> int:
        """The GPUs that a run needs."""
        return self.workers

    def on(self, nodes: Nodes) -> "TrainRun":
        """This cell, trained on several machines of a cluster."""
        return replace(self, nodes=nodes)

    @property
    def global_batch(self) -> int | None:
        """The global batch of the recipe; None if it names none."""
        return build.composed((*self.words, f"workers={self.workers}")).global_batch

    def with_workers(self, workers: int) -> "TrainRun":
        """This cell with other workers, at the global batch of its recipe; unchanged if the recipe names none.

        A cell of one worker, which fits everywhere, is also unchanged if its batch cannot be shared equally.
        """
        batch = None if workers == self.workers else self.global_batch
        if batch is None or (batch % workers and self.workers == 1):
            return self
        if batch % workers:
            raise InputError(f"WORKERS={workers}: {self.name} has a global batch of {batch}; use a divisor of it")
        hours = self.hours and self.hours * self.workers / workers
        return replace(self, workers=workers, hours=hours, overrides=(*self.overrides, f"batch_size={batch // workers}"))

    @property
    def words(self) -> tuple[str, ...]:
        """The settings of the runs, as pufferfish-run takes them."""
        return self.overrides

    def identity(self, seeds: Sequence[int]) -> list[Identity]:
        # torchrun sets the number of workers of a run; here it has to be given
        found = identified((*self.words, f"workers={self.workers}"), tuple(seeds))
        return [Identity(settings, directory) for directory, settings in found]

    def launcher(self) -> list[str]:
        """The command that the settings of a run are appended to."""
        if self.workers == 1:
            return [sys.executable, "-m", "pufferfish_bench"]
        together = ["--shutdown-timeout", str(PATIENCE), *(self.nodes.rendezvous if self.nodes else ["--standalone"])]
        torchrun = ["-m", "torch.distributed.run", *together, "--nproc-per-node", str(self.workers_here)]
        return [sys.executable, *torchrun, "-m", "pufferfish_bench"]

    def command(self, job: Job) -> list[str]:
        return [*self.launcher(), *self.words, f"seed={job.seed}", f"run_dir={job.directory}"]

    def environment(self) -> dict[str, str]:
        """The workers share the cores; torchrun would give each of them one thread, with a warning."""
        shared = self.workers_here > 1 or cores.SHARE in os.environ
        return cores.environment(self.workers_here) if shared else dict(os.environ)

    @property
    def workers_here(self) -> int:
        """The workers on this machine."""
        return self.workers // self.nodes.count if self.nodes else self.workers

    def run(self, job: Job) -> bool:
        """Train, unless another table has finished the run, and keep the record. Waits while another command trains it."""
        with run_lock.held(job.directory):
            if not job.trained and self.train(job):
                return False
            keep(job.directory, job.record)
            return True

    def assist(self, job: Job) -> int:
        """Train on another machine than the first of `nodes`, which writes the record; the exit code."""
        with machine_lock.held(exclusive=self.measures_time):
            return attend(self.command(job), env=self.environment())

    def train(self, job: Job) -> int:
        """Train in a child process; the exit code. The load is recorded for all runs: a table with times may share them."""
        with machine_lock.held(exclusive=self.measures_time), machine_load.recorded(job.directory):
            return attend(self.command(job), env=self.environment() | {PART_OF_MANY: "1"})

    def verdict(
        self, quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
    ) -> str:
        return verdicts.of_figure(quantity, ours, paper, profile=profile, machines=machines)


@dataclass(frozen=True, kw_only=True)
class BudgetRun(TrainRun):
    """A training with a multiple of the epochs of its recipe."""

    budget: float

    def recipe(self) -> dict[str, Any]:
        """The settings of the run with a budget of 1."""
        ((_, settings),) = identified((*self.overrides, f"workers={self.workers}"), (1,))
        return settings

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.overrides, *budget.scaled(self.recipe(), self.budget))


@dataclass(frozen=True, kw_only=True)
class LabRun(TrainRun):
    """A training in the network lab: one worker on each host, over capped links."""

    cap: str

    @property
    def bits(self) -> float:
        """The rate of each link, in bits per second."""
        return bits_per_second(str(self.cap))

    def identity(self, seeds: Sequence[int]) -> list[Identity]:
        """The settings of a run do not include its links, so the directory's name does."""
        links = {"hosts": self.workers, "cap_bits_per_second": round(self.bits)}
        return [
            replace(found, directory=found.directory.with_name(f"{found.directory.name}-{self.cap}"), links=links)
            for found in super().identity(seeds)
        ]

    @property
    def gpus(self) -> int:
        return 0  # hosts of the lab compute on the CPU

    def with_workers(self, workers: int) -> "TrainRun":
        return self  # its hosts are part of what is measured

    def launcher(self) -> list[str]:
        lab = ["-m", "pufferfish_bench.cli.netlab", "--hosts", str(self.workers), "--cap", str(self.cap), "--"]
        return [sys.executable, *lab]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)  # the lab itself shares out the cores


@dataclass(frozen=True, kw_only=True)
class Untrained(Cell):
    """Something that is built and looked at, not trained. All profiles find the same."""

    has_seeds: ClassVar[bool] = False

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is built."""

    @abstractmethod
    def results(self) -> dict[str, Any]:
        """What its record holds besides the settings, under one of the names in records.record.UNTRAINED."""

    def identity(self, seeds: Sequence[int]) -> list[Identity]:
        return [Identity(self.settings())]

    def run(self, job: Job) -> bool:
        from pufferfish_bench.records.environment import code_version  # imports torch

        with machine_lock.held(exclusive=self.measures_time):
            results = self.results()
        job.record.mkdir(parents=True, exist_ok=True)
        record = {"format": FORMAT, "settings": job.settings, **code_version(), **results, "finished": now()}
        write_json(job.record / RUN, record)
        return True


@dataclass(frozen=True, kw_only=True)
class Count(Untrained):
    """Parameters and MACs of a model or layer that is built and counted."""

    net: str

    @abstractmethod
    def count(self) -> dict[str, int]:
        """The totals by name."""

    def results(self) -> dict[str, Any]:
        return {COUNTED: self.count()}

    def verdict(
        self, quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
    ) -> str:
        return verdicts.of_count(quantity, ours, paper)


@dataclass(frozen=True, kw_only=True)
class ModelCount(Count):
    """A model with the paper's settings: as it is (vanilla), hybrid or fully low-rank."""

    overrides: tuple[str, ...]  # of pufferfish-describe

    def settings(self) -> dict[str, Any]:
        return {"overrides": list(self.overrides), "net": self.net}

    def count(self) -> dict[str, int]:
        from pufferfish_bench.paper import model_counts  # imports torch

        with build.config_errors():
            totals = model_counts.describe(**build.described(self.overrides), as_in_paper=False)["totals"][self.net]
        return {name: totals[name] for name in ("parameters", "parameters_and_buffers", "macs", "macs_as_in_paper")}


@dataclass(frozen=True, kw_only=True)
class LayerCount(Count):
    """One layer of Table 1 at given sizes: as it is (vanilla) or factorised."""

    layer: str

    def settings(self) -> dict[str, Any]:
        return {"layer": self.layer, "net": self.net, "sizes": dict(self.sizes)}

    def count(self) -> dict[str, int]:
        from pufferfish_bench.paper import layers  # imports torch

        return layers.count(self.layer, self.net, self.sizes)
