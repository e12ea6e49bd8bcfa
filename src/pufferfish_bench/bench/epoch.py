"""A whole epoch through the trainer, with all observers and checkpoints, against a bare loop over the same batches and net.

Both train an epoch and evaluate it. The trainer also times its sections, checks the loss, writes its record, TensorBoard's file,
a line for the terminal and a checkpoint.
"""

import copy
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.config import parts as assembly
from pufferfish_bench.config.build import composed
from pufferfish_bench.core import Observer, Run, Task
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.trackers.tensorboard import TensorBoard
from pufferfish_bench.training.pace import SlowRun
from pufferfish_bench.training.recorder import Recorder
from pufferfish_bench.training.terminal import Terminal

QUICK = {"rounds": 2, "images": 1280}


class Turns(Observer):
    """Trains an epoch of the rival after each epoch of the run, and times both. The checkpoint of an epoch is written after it,
    so its time is part of the next epoch's."""

    def __init__(self, rival: Callable[[int], None]):
        self.rival = rival
        self.ours: list[float] = []
        self.rivals: list[float] = []

    def phase_started(self, run: Run) -> None:
        self.start = time.perf_counter()

    def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
        self.ours.append(time.perf_counter() - self.start)
        begin = time.perf_counter()
        self.rival(row["epoch"])
        self.rivals.append(time.perf_counter() - begin)
        self.start = time.perf_counter()


def bare_loop(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, rate: float) -> Callable[[int], None]:
    """An epoch of plain training and its evaluation."""
    for group in optimizer.param_groups:
        group["lr"] = rate

    def epoch(number: int) -> None:
        model.train()
        for batch in task.batches(number, 0):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            task.evaluate(model)

    return epoch


def measure(
    *, rounds: int = 4, images: int = 20_480, batch_size: int = 128, width: float = 0.25
) -> tuple[list[Row], dict[str, Any]]:
    """ResNet-18 at `width` on synthetic images."""
    config = composed(
        [
            *("model=resnet18", "profile=smoke", f"model.net.width={width}", "schedule.milestones=[]"),
            *("schedule.learning_rate=0.01", f"epochs={rounds + 1}", f"batch_size={batch_size}", "device=cpu"),
            *(f"dataset.train_images={images}", f"dataset.test_images={max(1, images // 10)}"),
        ]
    )
    world = single_process()
    parts = assembly.build_parts(config, world)
    task, sample = assembly.build_task(config, parts, world)
    model = copy.deepcopy(parts.model)
    turns = Turns(bare_loop(task, model, parts.optimizer(model), rate=0.01))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        terminal = Terminal(console=Console(file=io.StringIO()))
        manifest = assembly.manifest(config, world)
        observers = [
            TensorBoard(directory=directory, manifest=manifest),
            Recorder(directory=directory, manifest=manifest),
            terminal,
            SlowRun(say=terminal.say, profile="smoke"),
            turns,
        ]
        trainer = assembly.trainer_of(
            parts, config, sample=sample, directory=directory, world=world, observers=observers, stop_requested=lambda: False
        )
        trainer.fit(world=world, task=task, model=parts.model)
    taken = {"trainer": turns.ours[1:], "bare loop": turns.rivals[1:]}  # the first round warms up
    note = (
        f"ResNet-18 at width {width:g}, {images:,} synthetic images, batch {batch_size}; training and evaluation. The trainer "
        "also writes records and checkpoints."
    )
    return [compare("epoch", *taken.items(), note=note)], {"seconds": taken}
