"""The time of a whole training step of one worker, by section, as the trainer has it; the workers are simulated."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pufferfish_bench.advisor.batches import Loss
from pufferfish_bench.bench import interleaved
from pufferfish_bench.core import Reducer
from pufferfish_bench.distributed.simulated import SimulatedWorld
from pufferfish_bench.distributed.world import World
from pufferfish_bench.training.stopwatch import Stopwatch

WORKERS = 2  # simulated in a step whose computation is measured
COMMUNICATION = ("communicate", "encode", "decode", "wait")  # sections that are not computation


@dataclass(frozen=True)
class Conditions:
    """What all measurements have in common: as in a run."""

    world: World  # the processes that measure at the same time
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    precision: Any
    clip_norm: float | None
    loss: Loss
    rounds: int

    @property
    def device(self) -> torch.device:
        return self.world.device


class Stepper:
    """Takes training steps of a model with a reducer. The learning rate is 0, so that the weights stay as they are."""

    def __init__(self, model: nn.Module, reducer: Callable[..., Reducer], conditions: Conditions, workers: int = WORKERS):
        self.model = model.train()
        self.conditions = conditions
        self.watch = Stopwatch(device=conditions.device, untimed_steps=0)
        self.optimizer = conditions.optimizer(model)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.reducer = reducer(world=SimulatedWorld(size=workers, device=conditions.device), watch=self.watch)
        self.module = self.reducer.attach(model)
        self.taken: list[dict[str, float]] = []

    def __call__(self) -> None:
        """One step; its sections are added to `taken`."""
        with self.watch.step():
            self.step()
        self.taken.append(self.watch.take()[0])

    def step(self) -> None:
        how = self.conditions
        with self.watch("forward"), how.precision.autocast():
            loss = how.loss(self.module)
        with self.watch("backward"):
            self.reducer.clear(self.optimizer)
            how.precision.backward(loss)
        self.reducer.reduce()
        with self.watch("step"):
            how.precision.unscale(self.optimizer)
            if how.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), how.clip_norm)
            how.precision.step(self.optimizer)


def measure(steppers: Mapping[str, Stepper], conditions: Conditions) -> dict[str, dict[str, float]]:
    """The median seconds of each section of a step, by name of the stepper; the mean over ranks.

    If several ranks measure, the section `wait` is how long they would wait for the slowest of them before the first message.
    """
    timed(steppers, conditions)
    world = conditions.world
    found = {}
    for name, stepper in steppers.items():
        found[name] = over_ranks(world, computation(stepper.taken))
        if world.size > 1:
            found[name]["wait"] = waiting(world.gather([step["forward"] + step["backward"] for step in stepper.taken[1:]]))
    return found


def waiting(seconds: Sequence[Sequence[float]]) -> float:
    """The median over rounds of the slowest rank minus the mean of all, from the seconds of each rank in each round."""
    return statistics.median(max(ranks) - statistics.fmean(ranks) for ranks in zip(*seconds, strict=True))


def timed(work: Mapping[str, Callable[[], Any]], conditions: Conditions) -> dict[str, list[float]]:
    """The seconds of each piece of work in each round, in turns. All ranks work at the same time, as in a run."""
    world = conditions.world

    def finished(piece: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            piece()
            world.synchronise()

        return run

    contenders = {name: finished(piece) for name, piece in work.items()}
    before = dict.fromkeys(work, world.barrier)
    return interleaved.seconds(contenders, rounds=conditions.rounds, before=before)


def computation(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each section over all steps but the first, without what belongs to communication."""
    sections = {name for step in taken for name in step} - set(COMMUNICATION)
    return {name: statistics.median(step.get(name, 0.0) for step in taken[1:]) for name in sorted(sections)}


def computing(step: Mapping[str, float]) -> float:
    """The seconds of a step without what belongs to communication."""
    return sum(seconds for section, seconds in step.items() if section not in COMMUNICATION)


def as_long_as(step: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The same step with a computation of so many seconds, in the proportions of its sections."""
    factor = seconds / computing(step)
    return {section: taken if section in COMMUNICATION else factor * taken for section, taken in step.items()}


def over_ranks(world: World, figures: Mapping[str, float]) -> dict[str, float]:
    """The mean over all ranks."""
    everywhere = world.gather(dict(figures))
    return {name: statistics.fmean(each[name] for each in everywhere) for name in figures}
