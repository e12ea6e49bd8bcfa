"""What a run prints: an observer with a line per epoch and a progress bar."""

import threading
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pufferfish_bench.base import dense_layers
from pufferfish_bench.base.console import say
from pufferfish_bench.base.printable import printable
from pufferfish_bench.core import Observer, Run
from pufferfish_bench.records import files
from pufferfish_bench.records.files import Row
from pufferfish_bench.training.loss_reader import LossReader

INTERVAL = 30  # longest time in seconds without a printed line if there is no terminal
SOON, LATE = 2 / 3, 5 / 6  # fractions of it after which the end of a step, or the watching thread, prints a line


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
            for sentence in dense_layers.sentences(operation.get("left", {})):
                self.say(f"  {sentence}")
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
