"""The base of all trackers: decides what is sent and when, and keeps failures and delays away from the training."""

import logging
import queue
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pufferfish_bench.base.flat import flat
from pufferfish_bench.core import Observer, Run
from pufferfish_bench.records import files, reader
from pufferfish_bench.records.files import Row
from pufferfish_bench.records.record import summarise

PATIENCE = 20.0  # seconds that a run waits for a tracker, and not again while the tracker is late or fails
ID = "tracker_id"  # the file in the directory of a run with the name under which trackers find the run again

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """What a tracker should have of a run."""

    resumed_at: int  # the epoch in which this process started to train
    rows: Sequence[Row]  # of all epochs, those before a resume included
    phases: Mapping[str, int]  # name -> first epoch
    results: Mapping[str, float] = field(default_factory=dict)  # of a finished run
    files: Mapping[str, str] = field(default_factory=dict)  # file name -> text, of a finished run
    finished: bool = False


class Tracker(Observer):
    """Copies a run into another system. Whatever that system does, the run continues and stays the same.

    A kind of tracker implements `connect`, `send` and `disconnect`. They are called in a thread of their own and may raise any
    error: the user is warned once, and the tracker connects again after the next epoch. So `send` is given all rows each time
    and sends those that are missing.
    """

    package: ClassVar[str] = ""  # the optional package that it needs, if any

    def __init__(self, *, directory: Path, manifest: Mapping[str, Any]):
        self.directory = directory
        self.manifest = manifest  # as in run.json: settings, versions, hardware
        self.rows: list[Row] | None = None
        self.phases: dict[str, int] = {}
        self.resumed_at = 0
        self.results: dict[str, float] = {}
        self.files: dict[str, str] = {}
        self.finished = False
        self.connected = False
        self.failing = False
        self.warned = False
        self.jobs: queue.SimpleQueue[tuple[Progress | None, threading.Event]] = queue.SimpleQueue()
        self.last = threading.Event()  # set when the last job is done
        self.last.set()
        self.thread = threading.Thread(target=self.work, daemon=True)  # a hung tracker does not keep the process alive

    def connect(self, progress: Progress) -> None:
        """Create the run in the other system, or find it there. May be called again after an error."""
        raise NotImplementedError

    def send(self, progress: Progress) -> None:
        """Bring the other system up to date."""
        raise NotImplementedError

    def disconnect(self, *, finished: bool) -> None:
        """Called once at the end, if connected."""

    @property
    def label(self) -> str:
        return type(self).__name__

    @property
    def name(self) -> str:
        """The name of the run."""
        return str(self.manifest.get("settings", {}).get("name", self.directory.name))

    def run_id(self) -> str:
        """Identifies the run in other systems; kept in its directory, so that a run started from the beginning gets a new one."""
        path = self.directory / ID
        if not path.exists():
            files.replace_file(path, uuid.uuid4().hex[:16] + "\n")
        return path.read_text().strip()

    def phase_started(self, run: Run) -> None:
        if self.rows is None:  # not in `run_started`: the record has been trimmed to the checkpoint by now
            self.rows = reader.read_rows(self.directory)
            self.resumed_at = run.epoch
            for row in self.rows:
                self.phases.setdefault(row["phase"], row["epoch"])
            self.thread.start()
        self.phases.setdefault(run.phase.name, run.epoch)
        self.update()

    def epoch_ended(self, run: Run, row: Row) -> None:
        assert self.rows is not None
        self.rows.append(row)
        self.update()

    def run_ended(self, run: Run) -> None:
        if self.rows:
            task = run.task
            summary = summarise(self.rows, metric=task.metric, higher_is_better=task.higher_is_better)
            self.results = numbers(flat(summary | run.final_results.figures), prefix="final/")
        self.files = dict(run.final_results.files)
        self.finished = True
        self.update()

    def closed(self) -> None:
        if not self.thread.is_alive():
            return
        self.put(None)
        if not self.last.wait(PATIENCE):
            self.warn("it has not received everything; the record in the run's directory is complete")

    def update(self) -> None:
        """Hand over what there is now, and wait for the tracker unless it is late: it should not compute beside timed steps."""
        in_time = self.last.is_set() and not self.failing
        self.put(
            Progress(
                self.resumed_at, tuple(self.rows or ()), dict(self.phases), dict(self.results), dict(self.files), self.finished
            )
        )
        if in_time:
            self.last.wait(PATIENCE)

    def put(self, progress: Progress | None) -> None:
        self.last = threading.Event()
        self.jobs.put((progress, self.last))

    def work(self) -> None:
        """Deliver what is handed over, until the run closes; runs in the thread."""
        closing = False
        while not closing:
            jobs = [self.jobs.get()]
            while not self.jobs.empty():
                jobs.append(self.jobs.get())
            if handed_over := [progress for progress, _ in jobs if progress]:
                self.deliver(handed_over[-1])  # it includes what the earlier ones have
            closing = jobs[-1][0] is None
            if closing:
                self.finish()
            for _, done in jobs:
                done.set()

    def deliver(self, progress: Progress) -> None:
        try:
            if not self.connected:
                self.connect(progress)
                self.connected = True
            self.send(progress)
            self.failing = False
        except Exception as error:  # libraries, networks and servers may raise anything
            self.connected, self.failing = False, True
            self.warn(f"{in_short(error)} (training continues; what is missing is sent after a later epoch)")

    def finish(self) -> None:
        try:
            if self.connected:
                self.disconnect(finished=self.finished)
        except Exception as error:
            self.warn(in_short(error))

    def warn(self, reason: str) -> None:
        if not self.warned:
            log.warning(f"{self.label}: {reason}")
        self.warned = True


def in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def figures(row: Row) -> dict[str, float]:
    """The numbers of a row by the name of their curve: `seconds_data` is sections/data, the bytes of a collective
    messages/NAME. No name is the beginning of another path (`seconds`, seconds/data): MLflow can keep metrics as files."""
    messages: dict[str, float] = {}
    for collective, size in row.get("messages", ()):
        messages[f"messages/{collective}"] = messages.get(f"messages/{collective}", 0) + size
    sections = {key: f"sections/{key.removeprefix('seconds_')}" if key.startswith("seconds_") else key for key in row}
    return {sections[key]: value for key, value in numbers(row).items() if key != "epoch"} | messages


def numbers(found: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The entries that are numbers; true is 1."""
    return {f"{prefix}{key}": value + 0 for key, value in found.items() if isinstance(value, int | float)}
