"""The mean step of a measured run, section by section, as its record tells it. Predicts nothing and draws nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isclose
from pathlib import Path
from typing import Any

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import SECTIONS, Row, without_rows
from pufferfish_bench.speech import complain
from pufferfish_bench.visible import visible

# The parts of the paper's Figure 4, and waiting for the slowest rank, which would otherwise pass for communication.
PARTS = {
    "computation": ("data", "forward", "backward", "step", "method", "other"),
    "encoding and decoding": ("encode", "decode"),
    "waiting": ("wait",),
    "communication": ("communicate",),
}


@dataclass(frozen=True)
class Link:
    """A network as the latency-bandwidth model sees it."""

    latency: float  # seconds
    bandwidth: float  # bytes a second


@dataclass(frozen=True)
class Measured:
    """The mean step of one phase of a run, and the conditions under which it was measured."""

    label: str  # the method, for the reader: runs of one label differ in their conditions only
    directory: Path
    name: str
    phase: str
    workers: int
    hosts: int | None  # None: not measured in the lab
    cap: float | None  # bits a second
    batch_size: int  # a worker's
    steps: int  # in an epoch
    timed_steps: int
    seconds: Mapping[str, float]  # a step, by section: the mean over ranks
    slowest: Mapping[str, float]  # likewise, of the slowest rank
    fastest: Mapping[str, float]
    bytes_sent: float  # a step
    messages: tuple[tuple[str, int], ...] | None  # (collective, bytes) of a step; None: an older record without them
    overlapped: bool  # DDP sends while it computes
    links: Mapping[str, Link]  # by collective, as fitted by the micro-benchmark; empty: not measured
    threads_a_core: float | None  # of all workers, if they share one machine: the lab's hosts do; None: they do not
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
        """Seconds of a step in one part of the paper's figure."""
        return sum(self.seconds[section] for section in PARTS[name])


def read(arguments: Sequence[str], *, phase: str | None = None) -> list[Measured]:
    """The runs that the words RUN or LABEL=RUN name, each with its label; two that cannot be told apart are refused."""
    given = [(None, word) if Path(word).exists() or "=" not in word else tuple(word.split("=", 1)) for word in arguments]
    loaded = [(label, Path(word), *load(Path(word))) for label, word in given]
    names = []
    for _, directory, record, rows in loaded:
        with checked.asking(directory):
            names.append(experiment(record))
        if missing := checked.missing_epochs(record, rows):
            complain(f"warning: the record in {directory} is {without_rows(missing)}")
    short = short_names(names)
    runs = [
        measured(record, rows, label=label or short[name], directory=directory, phase=phase)
        for name, (label, directory, record, rows) in zip(names, loaded, strict=True)
    ]
    seen: dict[tuple, Measured] = {}
    for run in runs:
        twin = seen.setdefault((run.label, run.conditions), run)
        if twin is not run:
            raise InputError(
                f"{twin.directory} and {run.directory} are both {run.label!r} under the same conditions: "
                "leave one out, or give them labels as LABEL=RUN"
            )
    return runs


def load(directory: Path) -> tuple[dict[str, Any], list[Row]]:
    """What run.json and epochs.jsonl hold."""
    return checked.read(directory)


def measured(record: dict[str, Any], rows: list[Row], *, label: str, directory: Path, phase: str | None) -> Measured:
    """The mean over the timed steps of a phase: of the last one, where the method pays, unless another is named."""
    with checked.asking(directory):
        run = mean_step(record, rows, label=label, directory=directory, phase=phase)
    counts = {"workers": run.workers, "batch_size": run.batch_size, "steps": run.steps}
    counts |= {f"{kind}.bandwidth": link.bandwidth for kind, link in run.links.items()}
    for name, value in counts.items():
        if not value > 0:
            raise InputError(f"the record in {directory} cannot be used: {name} is {value}, and must be above 0")
    return run


def check_timed(runs: Sequence[Measured]) -> None:
    """Refuse a run whose steps took no time: nothing can be compared with it."""
    for run in runs:
        if not run.step_seconds > 0:
            raise InputError(f"the record in {run.directory} cannot be used: its steps took {run.step_seconds} s")


def mean_step(record: dict[str, Any], rows: list[Row], *, label: str, directory: Path, phase: str | None) -> Measured:
    names = list(dict.fromkeys(row["phase"] for row in rows))
    if not names:
        raise InputError(f"the run in {directory} has not finished an epoch")
    if phase is not None and phase not in names:
        raise InputError(f"the run in {directory} has no phase {phase!r}; it has {visible(', '.join(names))}")
    rows = [row for row in rows if row["phase"] == (phase or names[-1])]
    timed_steps = sum(row["timed_steps"] for row in rows)
    if not timed_steps:
        raise InputError(f"the run in {directory} has no timed steps in phase {phase or names[-1]}: make its epochs longer")

    def a_step(figure: str) -> dict[str, float]:
        totals = {
            # one rank has no slowest and no fastest
            section: sum(row.get(f"{figure}_{section}", row.get(f"seconds_{section}", 0.0)) for row in rows)
            for section in SECTIONS
        }
        return {section: total / timed_steps for section, total in totals.items()}

    seconds = a_step("seconds")
    total = sum(row["seconds"] - row.get("seconds_first_steps", 0.0) for row in rows) / timed_steps
    if not isclose(sum(seconds.values()), total, rel_tol=1e-6, abs_tol=1e-9):
        raise InputError(
            f"the sections of the run in {directory} add up to {sum(seconds.values()):.6f} s a step, its steps took {total:.6f} s"
        )
    network, last = record.get("network") or {}, rows[-1]
    messages, hardware = last.get("messages"), record.get("hardware", {})
    shares_machine = network.get("cap_bits_per_second") is not None and {"threads", "cores"} <= set(hardware)
    return Measured(
        label=visible(label),
        directory=directory,
        name=visible(record["settings"]["name"]),
        phase=visible(last["phase"]),
        workers=record["world_size"],
        hosts=network.get("hosts"),
        cap=network.get("cap_bits_per_second"),
        batch_size=record["settings"]["batch_size"],
        steps=last["steps"],
        timed_steps=timed_steps,
        seconds=seconds,
        slowest=a_step("slowest"),
        fastest=a_step("fastest"),
        bytes_sent=sum(row.get("bytes_sent", 0) for row in rows) / sum(row["steps"] for row in rows),
        messages=None if messages is None else tuple((kind, size) for kind, size in messages),
        overlapped=".ddp." in record["settings"].get("reducer", {}).get("_target_", ""),
        links={
            kind: Link(network[kind]["latency"], network[kind]["bandwidth"])
            for kind in ("allreduce", "allgather")
            if kind in network
        },
        threads_a_core=record["world_size"] * hardware["threads"] / hardware["cores"] if shares_machine else None,
        record=record,
    )


def experiment(record: dict[str, Any]) -> str:
    """The name of a run without its number of workers, which is a condition and no method."""
    return record["settings"]["name"].replace(f"-{record['world_size']}workers", "")


def trained(runs: Sequence[Measured]) -> str:
    """What was trained, for a title: the words with which the names of all runs begin, and the batch of a worker."""
    places = zip(*(run.name.split("-") for run in runs), strict=False)
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, places)]
    sizes = sorted({run.batch_size for run in runs})
    return f"{'-'.join(common) or 'several nets'}, batch {' and '.join(map(str, sizes))} a worker"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each name without the words that all of them end and begin with: what is left tells them apart."""
    words = {name: name.split("-") for name in names}
    if len(words) > 1:
        for end in (-1, 0):
            while len({split[end] for split in words.values()}) == 1 and min(map(len, words.values())) > 1:
                for split in words.values():
                    del split[end]
    return {name: "-".join(split) for name, split in words.items()}
