"""The mean time of a step and of its sections, from the record of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isclose
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import complain
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import without_rows
from pufferfish_bench.records.record import Record, step_seconds, step_sections, timed_steps

# The parts of the paper's Figure 4, plus waiting for the slowest rank, which would otherwise be counted as communication.
PARTS = {
    "computation": ("data", "forward", "backward", "step", "method", "other"),
    "encoding and decoding": ("encode", "decode"),
    "waiting": ("wait",),
    "communication": ("communicate",),
}


@dataclass(frozen=True)
class Link:
    """A network in the latency-bandwidth model."""

    latency: float  # seconds
    bandwidth: float  # bytes per second


@dataclass(frozen=True)
class Measured:
    """The mean step of one phase of a run, and the conditions under which it was measured."""

    label: str  # the method; runs with the same label differ only in their conditions
    directory: Path
    name: str
    phase: str
    workers: int
    hosts: int | None  # None: not measured in the network lab
    cap: float | None  # bits per second
    batch_size: int  # per worker
    steps: int  # per epoch
    timed_steps: int
    seconds: Mapping[str, float]  # per step, by section: the mean over ranks
    slowest: Mapping[str, float]  # the same, of the slowest rank
    fastest: Mapping[str, float]
    bytes_sent: float  # per step
    messages: tuple[tuple[str, int], ...] | None  # (collective, bytes) of a step; None: an older record without them
    overlapped: bool  # whether gradients were sent while others were computed
    links: Mapping[str, Link]  # by collective, fitted to a micro-benchmark; empty: not measured
    threads_a_core: float | None  # of all workers, if they share one machine as the lab's hosts do; else None
    record: Mapping[str, Any]  # all of run.json

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def epoch_seconds(self) -> float:
        return self.step_seconds * self.steps

    @property
    def samples(self) -> int:
        return self.steps * self.workers * self.batch_size

    @property
    def conditions(self) -> tuple[int, int | None, float | None]:
        return self.workers, self.hosts, self.cap

    def part(self, name: str) -> float:
        """Seconds per step in one part of the paper's figure."""
        return sum(self.seconds[section] for section in PARTS[name])


def read(arguments: Sequence[str], *, phase: str | None = None) -> list[Measured]:
    """The runs given as RUN or LABEL=RUN, each with its label; two runs with the same label and conditions are refused."""
    given = [(None, word) if Path(word).exists() or "=" not in word else tuple(word.split("=", 1)) for word in arguments]
    loaded = [(label, Record.read(Path(word))) for label, word in given]
    names = []
    for _, record in loaded:
        with reader.asking(record.folder):
            names.append(experiment(record.run))
        if missing := record.missing_epochs:
            complain(f"warning: the record in {record.folder} is {without_rows(missing)}")
    short = short_names(names)
    runs = [
        measured(record, label=label or short[name], phase=phase) for name, (label, record) in zip(names, loaded, strict=True)
    ]
    seen: dict[tuple, Measured] = {}
    for run in runs:
        twin = seen.setdefault((run.label, run.conditions), run)
        if twin is not run:
            raise InputError(
                f"{twin.directory} and {run.directory} are both {run.label!r} under the same conditions: "
                "leave one out, or label them with LABEL=RUN"
            )
    return runs


def measured(record: Record, *, label: str, phase: str | None = None) -> Measured:
    """The mean over the timed steps of a phase; by default of the last one, which trains the final model."""
    with reader.asking(record.folder):
        run = mean_step(record, label=label, phase=phase)
    counts = {"workers": run.workers, "batch_size": run.batch_size, "steps": run.steps}
    counts |= {f"{kind}.bandwidth": link.bandwidth for kind, link in run.links.items()}
    for name, value in counts.items():
        if not value > 0:
            raise InputError(f"the record in {record.folder} cannot be used: {name} must be above 0, got {value}")
    return run


def check_timed(runs: Sequence[Measured]) -> None:
    """Refuse a run whose steps took no time: it cannot be compared with anything."""
    for run in runs:
        if not run.step_seconds > 0:
            raise InputError(f"the record in {run.directory} cannot be used: its steps took {run.step_seconds} s")


def mean_step(record: Record, *, label: str, phase: str | None) -> Measured:
    rows = record.phase_rows(phase)
    last, seconds, total = rows[-1], step_sections(rows), step_seconds(rows)
    if total is None:
        raise InputError(
            f"the run in {record.folder} has no timed steps in phase {last['phase']}: use longer epochs or fewer untimed_steps"
        )
    if not isclose(sum(seconds.values()), total, rel_tol=1e-6, abs_tol=1e-9):
        raise InputError(
            f"the sections of the run in {record.folder} add up to {sum(seconds.values()):.6f} s per step, "
            f"but its steps took {total:.6f} s"
        )
    run = record.run
    network, messages, hardware = run.get("network") or {}, last.get("messages"), run.get("hardware", {})
    shares_machine = network.get("cap_bits_per_second") is not None and {"threads", "cores"} <= set(hardware)
    return Measured(
        label=printable(label),
        directory=record.folder,
        name=printable(run["settings"]["name"]),
        phase=printable(last["phase"]),
        workers=run["world_size"],
        hosts=network.get("hosts"),
        cap=network.get("cap_bits_per_second"),
        batch_size=run["settings"]["batch_size"],
        steps=last["steps"],
        timed_steps=timed_steps(rows),
        seconds=seconds,
        slowest=step_sections(rows, "slowest"),
        fastest=step_sections(rows, "fastest"),
        bytes_sent=sum(row.get("bytes_sent", 0) for row in rows) / sum(row["steps"] for row in rows),
        messages=None if messages is None else tuple((kind, size) for kind, size in messages),
        overlapped=record.overlaps(phase),
        links={
            kind: Link(network[kind]["latency"], network[kind]["bandwidth"])
            for kind in ("allreduce", "allgather")
            if kind in network
        },
        threads_a_core=run["world_size"] * hardware["threads"] / hardware["cores"] if shares_machine else None,
        record=run,
    )


def experiment(record: Mapping[str, Any]) -> str:
    """The name of a run without its number of workers, which is a condition and not part of the method."""
    return record["settings"]["name"].replace(f"-{record['world_size']}workers", "")


def trained(runs: Sequence[Measured]) -> str:
    """What was trained, for a title: the common prefix of all names, and the batch size per worker."""
    places = zip(*(run.name.split("-") for run in runs), strict=False)
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, places)]
    sizes = sorted({run.batch_size for run in runs})
    return f"{'-'.join(common) or 'several models'}, batch {' and '.join(map(str, sizes))} per worker"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each name without the common prefix and suffix of all names, in whole words."""
    words = {name: name.split("-") for name in names}
    if len(words) > 1:
        for end in (-1, 0):
            while len({split[end] for split in words.values()}) == 1 and min(map(len, words.values())) > 1:
                for split in words.values():
                    del split[end]
    return {name: "-".join(split) for name, split in words.items()}
