"""Observers of a run: the record on disk, TensorBoard, the terminal, and estimates of how long it takes."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pufferfish_bench.base.console import about, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.core import Observer, Run
from pufferfish_bench.records import files, reader
from pufferfish_bench.records.files import EPOCHS, RUN, Row
from pufferfish_bench.records.record import summarise
from pufferfish_bench.training.loss_reader import LossReader

PATIENCE = 20  # seconds after the first step: a probe ends at the first end of a step after that
INTERVAL = 30  # longest time in seconds without a printed line if there is no terminal
SOON, LATE = 2 / 3, 5 / 6  # fractions of it after which the end of a step, or the watching thread, prints a line
LONG = 3600  # seconds: the estimate is printed for longer runs
INSTEAD = {"paper": "profile=cpu is the paper in miniature (minutes), profile=smoke checks that it runs (seconds)"}
Clock = Callable[[], float]

CONDITIONS = ("commit", "dirty", "versions", "hardware", "data", "world_size", "network")


log = logging.getLogger(__name__)


class Recorder(Observer):
    """Writes run.json and epochs.jsonl."""

    def __init__(self, *, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.manifest = {"format": reader.FORMAT, **manifest}
        self.rows: list[Row] = []

    def run_started(self, run: Run) -> None:
        self.manifest["plan"] = [{"phase": phase.name, "epochs": [phase.epochs.start, phase.epochs.stop]} for phase in run.plan]
        self.manifest["task"] = {"metric": run.task.metric, "higher_is_better": run.task.higher_is_better}
        earlier = reader.read_run(self.directory, needs=()) if (self.directory / RUN).exists() else {}
        self.manifest["started"] = earlier.get("started", files.now())
        self.manifest["resumed"] = earlier.get("resumed", [])
        if run.epoch or run.step:
            # keep the conditions of the start; what has changed since (code, machine) is recorded with the resume
            changed = {key: self.manifest.pop(key, None) for key in CONDITIONS if earlier.get(key) != self.manifest.get(key)}
            self.manifest |= {key: earlier[key] for key in changed if key in earlier}
            if "machine_load" in earlier:  # while the epochs before the checkpoint were trained
                self.manifest["machine_load"] = earlier["machine_load"]
            self.manifest["resumed"].append({"epoch": run.epoch, "step": run.step, "time": files.now(), **changed})
        # epochs after the checkpoint are trained again: drop their rows
        self.rows = [row for row in reader.read_rows(self.directory) if row["epoch"] < run.epoch]
        self.check_rows(run)
        files.rewrite_rows(self.directory / EPOCHS, self.rows)
        self.write(run)

    def check_rows(self, run: Run) -> None:
        """Warn about missing rows and list them in the record: they cannot be measured again."""
        missing = sorted({*range(run.epoch)} - {row["epoch"] for row in self.rows})
        if not missing:
            return
        if not self.rows and run.epoch == run.epochs:
            raise InputError(
                f"all {run.epoch} epochs are trained, but {self.directory / EPOCHS} has no rows: restore the file, or move the "
                "directory away to start again"
            )
        self.manifest["incomplete"] = missing
        log.warning(f"the record in {self.directory} is {files.without_rows(missing)}")

    def phase_started(self, run: Run) -> None:
        self.write(run)

    def epoch_ended(self, run: Run, row: Row) -> None:
        row = row | {"overlaps": run.reducer.overlaps}
        self.rows.append(row)
        files.append_row(self.directory / EPOCHS, row)

    def run_ended(self, run: Run) -> None:
        task = run.task
        self.manifest["finished"] = files.now()
        summary = summarise(self.rows, metric=task.metric, higher_is_better=task.higher_is_better)
        self.manifest["summary"] = summary | run.final_results.figures
        for name, text in run.final_results.files.items():
            files.replace_file(self.directory / name, text)
        self.write(run)

    def write(self, run: Run) -> None:
        self.manifest["operations"] = [operation for operation in run.operations if operation]
        files.write_json(self.directory / RUN, self.manifest)


class TensorBoard(Observer):
    """Writes every number in a row as a scalar per epoch."""

    def __init__(self, *, directory: Path):
        self.directory = directory

    def run_started(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # importing it takes a second, and nothing else needs it

        self.writer = SummaryWriter(self.directory, purge_step=run.epoch)

    def epoch_ended(self, run: Run, row: Row) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "epoch":
                section, _, rest = name.partition("_")
                self.writer.add_scalar(f"seconds/{rest}" if section == "seconds" and rest else name, value, row["epoch"])
        self.writer.flush()

    def closed(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()


class Terminal(Observer):
    """Prints a line per epoch, and a progress bar on a terminal, otherwise a line every `interval` seconds.

    That line is printed at the end of a step, with the loss; a thread prints it if a step, an evaluation or a surgery takes long.
    """

    def __init__(self, *, console: Console, interval: float = INTERVAL):
        self.console = console
        self.interval = interval
        self.said = time.monotonic()
        self.doing = ""
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self.break_silence, daemon=True)
        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:.1f} steps/s  {task.fields[metric]}", markup=False),
            TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.loss = LossReader()
        self.rows: list[Row] = []

    def run_started(self, run: Run) -> None:
        if run.task.note:
            self.say(run.task.note)
        if run.epoch or run.step:
            self.say(f"resuming in epoch {run.epoch + 1} after {run.step} steps")
        self.steps = sum(run.task.steps(epoch) for epoch in range(run.epochs))
        done = sum(run.task.steps(epoch) for epoch in range(run.epoch)) + run.step
        self.bar = self.progress.add_task("", total=self.steps, completed=done, loss=0.0, rate=0.0, metric="")
        self.metric = run.task.metric
        self.doing = "preparing the first step"
        self.progress.start()
        if self.progress.disable and self.interval > 0:
            self.watcher.start()

    def phase_started(self, run: Run) -> None:
        operation = run.operations[-1]
        if operation and operation["epoch"] == run.epoch and run.step == 0:
            layers = operation.get("layers", {})
            self.say(
                f"phase {run.phase.name}: {len(layers)} layer{'s' * (len(layers) != 1)} changed in {operation['seconds']:.2f} s; "
                + sizes(run)
                + (f", {operation['nonzero_parameters']:,} not zero" if "nonzero_parameters" in operation else "")
            )
            if "note" in operation:
                self.say(f"  {operation['note']}")
            for layer, reason in operation.get("left", {}).items():
                self.say(f"  not factorised: {layer}: {reason}")
        else:
            self.say(f"phase {run.phase.name}: {sizes(run)}")

    def step_ended(self, run: Run) -> None:
        steps = run.task.steps(run.epoch)
        self.doing = f"epoch {run.epoch + 1}/{run.epochs}: in step {run.step + 1}/{steps}" if run.step < steps else "testing"
        if self.progress.disable:
            self.say_at_times(run, f"step {run.step}/{run.task.steps(run.epoch)}")
            return
        now = self.progress.get_time()
        if now - getattr(self, "shown", 0.0) < 0.2:  # seconds: looks smooth
            self.progress.advance(self.bar)
            return
        self.shown = now
        loss = self.loss.read(run.tally)
        self.progress.update(
            self.bar,
            advance=1,
            description=printable(f"epoch {run.epoch + 1}/{run.epochs} {run.phase.name}"),
            loss=self.progress.tasks[0].fields["loss"] if loss is None else loss,
            rate=self.progress.tasks[0].speed or 0.0,
            metric=f"{self.metric} {self.rows[-1][self.metric]:.2f}" if self.rows else "",
        )

    def evaluation_started(self, run: Run) -> None:
        self.progress.update(self.bar, description=f"epoch {run.epoch + 1}/{run.epochs} testing")

    def evaluation_step(self, run: Run) -> None:
        if self.progress.disable:
            self.say_at_times(run, "testing")

    def say_at_times(self, run: Run, doing: str) -> None:
        """Print a status line if the last one was a while ago, as soon as the loss can be read without waiting."""
        if time.monotonic() - self.said >= self.interval * SOON and (loss := self.loss.read(run.tally)) is not None:
            self.say(f"epoch {run.epoch + 1:>3}/{run.epochs}  {run.phase.name:<9} loss {loss:.4f}  {doing}")

    def break_silence(self) -> None:
        """Print a line when nothing was printed for almost `interval` seconds; runs in a thread and reads nothing of the run."""
        while not self.over.wait(self.interval * (1 - LATE)):
            if time.monotonic() - self.said >= self.interval * LATE:
                self.say(f"still {self.doing}")

    def epoch_ended(self, run: Run, row: Row) -> None:
        self.rows.append(row)
        last = run.epoch >= run.epochs
        self.doing = "computing the final results" if last else f"saving epoch {run.epoch} or starting the next phase"
        self.say(
            f"epoch {row['epoch'] + 1:>3}/{run.epochs}  {row['phase']:<9} loss {row['loss']:.4f}  "
            f"{self.metric} {row[self.metric]:.2f}  lr {row['learning_rate']:g}  {row['seconds']:.1f} s"
        )

    def closed(self) -> None:
        self.over.set()
        if self.watcher.is_alive():
            self.watcher.join()
        self.progress.stop()

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        say(text, self.console)


def sizes(run: Run) -> str:
    trained = files.frozen({"parameters": run.parameters, "trainable_parameters": run.trainable_parameters})
    return f"{run.parameters:,} parameters{f' ({trained})' if trained else ''}, {run.macs:,} MACs"


class SlowRun(Observer):
    """After the first steps, estimates how long the run will take; if that is long, prints it once with advice."""

    def __init__(self, *, say: Callable[[str], None], profile: str | None, long: float = LONG, clock: Clock = time.monotonic):
        self.say = say
        self.advice = INSTEAD.get(profile or "", "use fewer epochs, less data or a smaller model.net.width")
        self.long = long
        self.clock = clock
        self.times: list[float] = []  # start of the phase, then the end of each step
        self.done = False

    def phase_started(self, run: Run) -> None:
        self.times = [self.clock()]

    def step_ended(self, run: Run) -> None:
        if self.done:
            return
        self.times.append(self.clock())
        if len(self.times) < 5 and self.times[-1] - self.times[0] < PATIENCE and run.step < run.task.steps(run.epoch):
            return
        self.done = True
        # skip the first step, which warms up, unless it is the only one
        start = min(1, len(self.times) - 2)
        pace = (self.times[-1] - self.times[start]) / (len(self.times) - 1 - start)
        left = sum(run.task.steps(epoch) for epoch in range(run.epoch, run.epochs)) - run.step
        if left * pace > self.long:
            self.say(f"at this pace the run takes {about(left * pace)}, not counting evaluation: {self.advice}")


class Probe(Observer):
    """Times the first steps of a run and estimates how long all its steps would take, without evaluation and surgery."""

    def __init__(self, *, steps: int):
        self.steps = steps
        self.times: list[float] = []  # end of each step
        self.all_steps = 0

    def step_ended(self, run: Run) -> None:
        run.world.synchronise()
        self.times.append(time.perf_counter())
        self.all_steps = run.task.steps(run.epoch) * run.plan[-1].epochs.stop

    def evaluation_started(self, run: Run) -> None:
        self.steps = 0  # end the probe: evaluation would distort the step times

    def over(self) -> bool:
        enough = len(self.times) >= self.steps
        return len(self.times) > 1 and (enough or self.times[-1] - self.times[0] > PATIENCE)

    def found(self) -> dict[str, float]:
        """The estimate, without the first step, which warms up; empty on ranks that measured nothing."""
        if not self.times:
            return {}
        pace = (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)
        return {"steps": self.all_steps, "seconds_per_step": pace, "seconds": self.all_steps * pace}
