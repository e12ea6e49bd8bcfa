"""Those who look on: the record on disk, TensorBoard, and the person at the terminal."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pufferfish_bench import checked, records
from pufferfish_bench.core import Observer, Run
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, RUN, Row
from pufferfish_bench.speech import about, say
from pufferfish_bench.visible import visible

PATIENCE = 20  # seconds after its first step that a probe goes on at most, and then to the end of the step
INTERVAL = 30  # seconds at most without a line where there is no terminal
SOON, LATE = 2 / 3, 5 / 6  # of it: when the end of a step prints a line, and when the watching thread does
LONG = 3600  # seconds: whoever starts a run that takes longer is told how long
INSTEAD = {"paper": "profile=cpu is the paper in miniature (minutes), profile=smoke checks that it runs (seconds)"}
Clock = Callable[[], float]

CONDITIONS = ("commit", "dirty", "versions", "hardware", "data", "world_size", "network")


log = logging.getLogger(__name__)


class Recorder(Observer):
    """Writes run.json and epochs.jsonl."""

    def __init__(self, *, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.manifest = manifest
        self.rows: list[Row] = []

    def run_started(self, run: Run) -> None:
        self.manifest["plan"] = [{"phase": phase.name, "epochs": [phase.epochs.start, phase.epochs.stop]} for phase in run.plan]
        earlier = checked.read_run(self.directory, needs=()) if (self.directory / RUN).exists() else {}
        self.manifest["started"] = earlier.get("started", records.now())
        self.manifest["resumed"] = earlier.get("resumed", [])
        if run.epoch or run.step:
            # the first conditions stay; what has changed since (code, machine) is told with the resume
            changed = {key: self.manifest.pop(key, None) for key in CONDITIONS if earlier.get(key) != self.manifest.get(key)}
            self.manifest |= {key: earlier[key] for key in changed if key in earlier}
            self.manifest["resumed"].append({"epoch": run.epoch, "step": run.step, "time": records.now(), **changed})
        # rows of epochs that the checkpoint does not know are about to be trained again
        self.rows = [row for row in checked.read_rows(self.directory) if row["epoch"] < run.epoch]
        self.check_rows(run)
        records.rewrite_rows(self.directory / EPOCHS, self.rows)
        self.write(run)

    def check_rows(self, run: Run) -> None:
        """Rows that are gone cannot be had again: the record says which, and so do we."""
        missing = sorted({*range(run.epoch)} - {row["epoch"] for row in self.rows})
        if not missing:
            return
        if not self.rows and run.epoch == run.epochs:
            raise InputError(
                f"all {run.epoch} epochs are trained, but {self.directory / EPOCHS} has no row of any: bring it back, or move "
                "the directory away to start anew"
            )
        self.manifest["incomplete"] = missing
        log.warning(f"the record in {self.directory} is {records.without_rows(missing)}")

    def phase_started(self, run: Run) -> None:
        self.write(run)

    def epoch_ended(self, run: Run, row: Row) -> None:
        self.rows.append(row)
        records.append_row(self.directory / EPOCHS, row)

    def run_ended(self, run: Run) -> None:
        task = run.task
        self.manifest["finished"] = records.now()
        summary = records.summarise(self.rows, metric=task.metric, higher_is_better=task.higher_is_better)
        self.manifest["summary"] = summary | run.conclusion.figures
        for name, text in run.conclusion.files.items():
            records.replace_file(self.directory / name, text)
        self.write(run)

    def write(self, run: Run) -> None:
        self.manifest["operations"] = [operation for operation in run.operations if operation]
        records.write_json(self.directory / RUN, self.manifest)


class TensorBoard(Observer):
    """Writes every number of a row as a scalar over epochs."""

    def __init__(self, *, directory: Path):
        self.directory = directory

    def run_started(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second of imports that nothing else needs

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
    """Prints a line an epoch; shows a progress bar if there is a terminal to show it on, else a line every `interval` seconds.

    The end of a step prints it, with the loss; a small thread does where a step, a test, a factorisation or the end takes long.
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
                f"phase {run.phase.name}: {len(layers)} layers changed in {operation['seconds']:.2f} s; {sizes(run)}"
                + (f", {operation['nonzero_parameters']:,} not zero" if "nonzero_parameters" in operation else "")
            )
            if "note" in operation:
                self.say(f"  {operation['note']}")
            for layer, reason in operation.get("left", {}).items():
                self.say(f"  left alone: {layer}: {reason}")
        else:
            self.say(f"phase {run.phase.name}: {sizes(run)}")

    def step_ended(self, run: Run) -> None:
        steps = run.task.steps(run.epoch)
        self.doing = f"epoch {run.epoch + 1}/{run.epochs}: in step {run.step + 1}/{steps}" if run.step < steps else "testing"
        if self.progress.disable:
            self.say_at_times(run, f"step {run.step}/{run.task.steps(run.epoch)}")
            return
        now = self.progress.get_time()
        if now - getattr(self, "shown", 0.0) < 0.2:  # seconds: often enough for the eye, rare enough for the GPU
            self.progress.advance(self.bar)
            return
        self.shown = now
        self.progress.update(
            self.bar,
            advance=1,
            description=visible(f"epoch {run.epoch + 1}/{run.epochs} {run.phase.name}"),
            loss=run.tally.mean_loss(),
            rate=self.progress.tasks[0].speed or 0.0,
            metric=f"{self.metric} {self.rows[-1][self.metric]:.2f}" if self.rows else "",
        )

    def evaluation_started(self, run: Run) -> None:
        self.progress.update(self.bar, description=f"epoch {run.epoch + 1}/{run.epochs} testing")

    def evaluation_step(self, run: Run) -> None:
        if self.progress.disable:
            self.say_at_times(run, "testing")

    def say_at_times(self, run: Run, doing: str) -> None:
        """A line about what is being done, if there has been none for a while. The loss may wait for the device."""
        if time.monotonic() - self.said >= self.interval * SOON:
            loss = run.tally.mean_loss()
            self.say(f"epoch {run.epoch + 1:>3}/{run.epochs}  {run.phase.name:<9} loss {loss:.4f}  {doing}")

    def break_silence(self) -> None:
        """A line when nothing else has been said for almost the interval; reads nothing of the run, which goes on meanwhile."""
        while not self.over.wait(self.interval * (1 - LATE)):
            if time.monotonic() - self.said >= self.interval * LATE:
                self.say(f"still {self.doing}")

    def epoch_ended(self, run: Run, row: Row) -> None:
        self.rows.append(row)
        last = run.epoch >= run.epochs
        self.doing = "computing the final results" if last else f"saving epoch {run.epoch}, or on the way to the next phase"
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
    trained = records.frozen({"parameters": run.parameters, "trainable_parameters": run.trainable_parameters})
    return f"{run.parameters:,} parameters{f' ({trained})' if trained else ''}, {run.macs:,} MACs"


class SlowRun(Observer):
    """Says once, after the first steps, how long the run will take at their pace, if that is long, and what to do about it."""

    def __init__(self, *, say: Callable[[str], None], profile: str | None, long: float = LONG, clock: Clock = time.monotonic):
        self.say = say
        self.advice = INSTEAD.get(profile, "fewer epochs, less data or a narrower net is sooner done")
        self.long = long
        self.clock = clock
        self.times: list[float] = []  # of the start of the phase, then of the ends of steps
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
        # the first step does not count if there is another: it warms up
        start = min(1, len(self.times) - 2)
        pace = (self.times[-1] - self.times[start]) / (len(self.times) - 1 - start)
        left = sum(run.task.steps(epoch) for epoch in range(run.epoch, run.epochs)) - run.step
        if left * pace > self.long:
            self.say(f"at this pace the run takes {about(left * pace)}, the tests after each epoch not counted: {self.advice}")


class Probe(Observer):
    """Looks at the first steps of a run: how long all of it would take at their pace, but for testing and surgery."""

    def __init__(self, *, steps: int):
        self.steps = steps
        self.times: list[float] = []  # at which steps ended
        self.all_steps = 0

    def step_ended(self, run: Run) -> None:
        run.world.synchronise()
        self.times.append(time.perf_counter())
        self.all_steps = run.task.steps(run.epoch) * run.plan[-1].epochs.stop

    def evaluation_started(self, run: Run) -> None:
        self.steps = 0  # what follows is no pace of steps

    def over(self) -> bool:
        enough = len(self.times) >= self.steps
        return len(self.times) > 1 and (enough or self.times[-1] - self.times[0] > PATIENCE)

    def found(self) -> dict[str, float]:
        """The first step does not count: it warms up. Nothing is found where nobody looked, as on all ranks but one."""
        if not self.times:
            return {}
        pace = (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)
        return {"steps": self.all_steps, "seconds_per_step": pace, "seconds": self.all_steps * pace}
