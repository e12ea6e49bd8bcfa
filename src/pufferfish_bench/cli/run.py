"""The command pufferfish-run: train with the given settings, or resume. Torch is imported once the config is complete."""

import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import RANK, console, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.messages import command, explain
from pufferfish_bench.cli.sweeps import Sweep
from pufferfish_bench.config.build import config_errors
from pufferfish_bench.config.checks import check_numbers, warn_of_batch, warn_of_rate
from pufferfish_bench.config.command_line import Job, for_each_config
from pufferfish_bench.config.settings import settings_of
from pufferfish_bench.records import reader, run_directory
from pufferfish_bench.records.files import write_json
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.summary import closing


def run() -> None:
    """The command pufferfish-run. A sweep continues after a run that fails."""
    sweep = Sweep()

    def train_job(job: Job) -> None:
        with sweep.attempt(job.overrides, job.number, job.config.device) if job.of_sweep else contextlib.nullcontext():
            train(job)

    with command("run"), sweep.report():
        for_each_config("config", train_job)


def train(job: Job) -> None:
    """Train a run, resume it, or show the result if it is finished. A probe only runs the first steps."""
    if job.refusal:
        raise InputError(job.refusal)
    with errors_to(job.config.probe_file if job.config.probe_steps else ""), config_errors():
        check_numbers(job.config)
        with probe_directory() if job.config.probe_steps else contextlib.nullcontext(Path(job.config.run_dir)) as directory:
            train_in(directory, job)


@contextlib.contextmanager
def errors_to(probe_file: str) -> Iterator[None]:
    """If a probe fails, write the error message to the file that its caller reads; that of the first rank to fail is kept."""
    try:
        yield
    except (InputError, OSError, RuntimeError) as error:
        if probe_file and not Path(probe_file).exists():
            write_json(Path(probe_file), {"error": explain(error) or f"{type(error).__name__}: {error}"})
        raise


@contextlib.contextmanager
def probe_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def train_in(directory: Path, job: Job) -> None:
    """The composition root: build the parts, check them, train."""
    config, settings = job.config, settings_of(job.config)
    say(f"{settings['name']}  ->  {directory}", style="bold")
    if RANK == 0 and config.workers == 1 and run_directory.finished(directory, settings):
        return show_summary(directory)  # immediately, without importing torch

    from pufferfish_bench.config import parts as assembly
    from pufferfish_bench.distributed import world as worlds

    world = worlds.join(config.device, timeout=config.rank_timeout, warn_after=config.rank_warning)
    if world.broadcast_object(RANK == 0 and run_directory.finished(directory, settings)):
        return show_summary(directory)
    if RANK == 0:
        warn_of_batch(config)
    parts = assembly.build_parts(config, world)
    assembly.try_parts(parts, config, world)
    if RANK == 0:
        warn_of_rate(config, job.overrides)
    task, sample = assembly.build_task(config, parts, world)
    return fit(directory, job, parts, task=task, sample=sample, world=world)


def fit(directory: Path, job: Job, parts: Any, *, task: Any, sample: list[Any], world: Any) -> None:
    """Train to the end, or until a stop is requested."""
    from pufferfish_bench.config import parts as assembly
    from pufferfish_bench.trainer import Stopped
    from pufferfish_bench.training.observers import Probe
    from pufferfish_bench.training.signals import Interrupts

    config, interrupts = job.config, Interrupts()
    probe = Probe(steps=config.probe_steps) if config.probe_steps else None
    manifest = assembly.manifest(config, world, parts.layers)
    observers = [probe] if probe else observers_of(directory, manifest, profile=job.profile, device=world.device.type)
    trainer = assembly.trainer_of(
        parts, config, sample=sample, directory=directory, world=world, observers=observers if world.rank == 0 else [],
        stop_requested=lambda: interrupts.requested() or (probe is not None and probe.over()),
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    with run_directory.exclusive(directory) if world.rank == 0 else contextlib.nullcontext(), interrupts:
        try:
            trainer.fit(world=world, task=task, model=parts.model)
        except Stopped:
            if not probe or interrupts.requested():
                console.print("stopped; a checkpoint is saved, and the same command resumes from it", highlight=False)
                sys.exit(128 + (interrupts.received or signal.SIGTERM))  # another rank may have received the signal
    if probe:
        show_probe(probe.found(), config.probe_file)
    else:
        show_summary(directory)


def observers_of(directory: Path, manifest: dict[str, Any], *, profile: str | None, device: str) -> list[Any]:
    """The observers of rank 0: the record, TensorBoard and the terminal."""
    from pufferfish_bench.training.observers import Recorder, SlowRun, TensorBoard, Terminal

    terminal = Terminal(console=console)
    slow = [SlowRun(say=terminal.say, profile=profile)] if device == "cpu" else []
    recorder = Recorder(directory=directory, manifest=manifest)
    return [recorder, TensorBoard(directory=directory / "tensorboard"), terminal, *slow]


def show_probe(found: dict[str, float], file: str) -> None:
    """Write the estimated duration to a file if one is named, else to standard output."""
    if RANK:
        return
    if file:
        write_json(Path(file), found)
    else:
        print(json.dumps(found))


def show_summary(directory: Path) -> None:
    """Print the result of a finished run, on rank 0: other ranks may not see its files."""
    if RANK:
        return
    with reader.asking(directory):
        say(closing(Record.read(directory)), lines=True)
