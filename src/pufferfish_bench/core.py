"""The nouns: what a run is made of, and the few places where a method may differ. No method, model or dataset is named here.

A method differs from plain training in which parameters train when (its plan of phases), in how gradients are averaged
(a reducer), and in what it does at two moments of a step (its hooks). All else is the one loop in trainer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.stopwatch import Stopwatch
from pufferfish_bench.world import World


@dataclass(frozen=True)
class Conclusion:
    """What is worth finding out of the finished model alone."""

    figures: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # name -> text, to lie next to the record


class Task:
    """What is learnt: the batches of an epoch, the loss of a batch, and the figures by which a model is judged."""

    metric: str  # the headline figure among those of `evaluate`
    higher_is_better: bool
    note: str = ""  # what a person should know of the data, if anything

    def check(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Refuse a model that cannot be trained on these batches, before training; `sample` is one sample as it takes it."""

    def steps(self, epoch: int) -> int:
        """Number of batches in an epoch."""
        raise NotImplementedError

    def batches(self, epoch: int, start: int) -> Generator[Any]:
        """The batches of an epoch from number `start` on: a pure function of the seed, the epoch and the number.

        A batch may be written over when the next one is asked for. Closing the generator lets go of what makes them.
        """
        raise NotImplementedError

    def loss(self, model: Callable[..., Tensor], batch: Any) -> Tensor:
        """The scalar to go down."""
        raise NotImplementedError

    def count(self, batch: Any) -> Tensor | int:
        """How many answers the loss of a batch is the mean of: its weight in the mean loss of an epoch."""
        raise NotImplementedError

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """The figures of a model on data it was not trained on, of which each rank may look at a part; the same on all."""
        raise NotImplementedError

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        """What else the mean loss of an epoch says, if anything."""
        return {}

    def conclude(self, model: nn.Module) -> Conclusion:
        """What there is to say of the finished model, beyond the figures of its last epoch; asked on all ranks."""
        return Conclusion()

    def state_dict(self) -> dict[str, Any]:
        """What has to be restored in the middle of an epoch, if anything."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


Message = tuple[str, int]  # a collective, and the bytes that it was given by each rank


class Reducer:
    """Turns the gradients of all ranks into their mean, in place. The base class is one process: there is nothing to send."""

    in_step = True  # a step waits for all ranks
    takes_scaled = True  # gradients that are too large by a factor, and infinite now and then

    def __init__(self, *, world: World, watch: Stopwatch):
        self.world = world
        self.watch = watch

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        """Refuse what cannot work together, before anything is trained."""

    def attach(self, model: nn.Module) -> nn.Module:
        """The module to call in the forward pass."""
        return model

    def clear(self, optimizer: Optimizer) -> None:
        """Forget the gradients of the step before."""
        optimizer.zero_grad()

    def reduce(self) -> list[Message]:
        """Average the gradients; return what the collectives were really given."""
        return []

    def settle(self, model: nn.Module) -> None:
        """Make the model the same on all ranks before it is judged: each has seen other batches, and so has its BatchNorm."""
        self.world.average(buffer for buffer in model.buffers() if buffer.is_floating_point())

    def state_dict(self) -> dict[str, Any]:
        """What this rank has to have back, and no other rank knows."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class Operation:
    """What a surgery did."""

    done: dict[str, Any]  # plain data (strings and numbers): enough to replay the structure, and worth recording
    carried: dict[str, dict[str, Any]] = field(default_factory=dict)  # parameter -> what the fresh optimizer knows of it


class Surgery:
    """A change of the model at the start of a phase."""

    def operate(self, run: Run) -> Operation:
        """Change `run.model` in place; called on rank 0 alone, all others replay it and are given the tensors."""
        raise NotImplementedError

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        """Give `model` the structure that `done` describes; its tensors are loaded afterwards.

        `done` may come from a file that somebody else wrote: a ValueError or LookupError says that it does not fit the model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs on one set of parameters, with one optimizer and one reducer."""

    name: str
    epochs: range
    enter: Surgery | None = None
    until: Callable[[Run], bool] | None = None  # ends the phase early; reads only what is the same on all ranks
    reducer: Callable[..., Reducer] | None = None  # another one than the run's
    schedule: Mapping[str, Any] = field(default_factory=dict)  # settings of the run's schedule that are others in this phase
    restart: bool = False  # the learning rate is that of a run which begins here


class Method:
    """A way to train. The base class is plain training; a method overrides what it does differently."""

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        """The phases, in order, in which `model` is trained when the settings say so many epochs."""
        return [Phase("train", range(epochs))]

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Refuse a model, an optimizer or settings that cannot work, before anything is trained."""

    def after_backward(self, run: Run) -> None:
        """The gradients are averaged, the step is not yet taken."""

    def after_step(self, run: Run) -> None:
        """The optimizer has moved the parameters."""

    def after_epoch(self, run: Run) -> dict[str, float]:
        """An epoch has been trained and judged, on no clock; what the record should know of it, if anything."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is the same on all ranks and has to be restored, if anything."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Tally:
    """The losses and the traffic of one epoch so far. Losses are added up on the device, so that no step waits for it."""

    def __init__(self) -> None:
        self.loss_sum: Tensor | float = 0.0
        self.count: Tensor | int = 0  # of answers: a small last batch weighs less
        self.finite_steps: Tensor | int = 0  # steps before the sum first ceased to be finite
        self.steps = 0
        self.bytes_sent = 0
        self.messages: list[Message] = []  # of the last step

    def add(self, loss: Tensor, count: Tensor | int, messages: list[Message]) -> None:
        self.loss_sum = self.loss_sum + loss.detach().double() * count
        self.count = self.count + count
        self.finite_steps = self.finite_steps + self.loss_sum.isfinite()
        self.steps += 1
        self.bytes_sent += sum(size for _, size in messages)
        self.messages = messages

    def mean_loss(self) -> float:
        return float(self.loss_sum) / float(self.count)

    def first_bad_step(self) -> int | None:
        """The number of the first step whose loss was not finite."""
        finite = int(self.finite_steps)
        return finite if finite < self.steps else None

    def state_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "loss_sum": float(self.loss_sum),
            "count": int(self.count),
            "finite_steps": int(self.finite_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@dataclass
class Run:
    """What is being trained now, and how far it has come."""

    world: World
    task: Task
    model: nn.Module
    watch: Stopwatch
    plan: list[Phase]
    phase_index: int = 0
    phase_start: int = 0
    epoch: int = 0
    step: int = 0
    module: nn.Module | None = None  # what the forward pass calls: the model as compiled or wrapped
    optimizer: Optimizer | None = None
    reducer: Reducer | None = None
    learning_rate: float = 0.0
    history: list[float] = field(default_factory=list)  # the metric of each epoch, turned so that less is better
    tally: Tally = field(default_factory=Tally)
    operations: list[dict[str, Any] | None] = field(default_factory=list)  # what each phase's surgery did, if it had one
    parameters: int = 0
    trainable_parameters: int = 0
    macs: int = 0
    conclusion: Conclusion = field(default_factory=Conclusion)

    @property
    def phase(self) -> Phase:
        return self.plan[self.phase_index]

    @property
    def epochs(self) -> int:
        return self.plan[-1].epochs.stop


class Observer:
    """Looks on and never changes what it sees."""

    def run_started(self, run: Run) -> None:
        """Training begins, or goes on from `run.epoch` and `run.step`."""

    def phase_started(self, run: Run) -> None:
        """Surgery is done; optimizer and reducer are new."""

    def step_ended(self, run: Run) -> None: ...

    def evaluation_started(self, run: Run) -> None:
        """The steps of an epoch are done."""

    def evaluation_step(self, run: Run) -> None:
        """A batch is about to be evaluated."""

    def epoch_ended(self, run: Run, row: dict[str, Any]) -> None: ...

    def run_ended(self, run: Run) -> None:
        """The plan is done."""

    def closed(self) -> None:
        """Training is over, done or not: let go of what is held."""
