"""What a run is made of, and the few places where a method may differ. No method, model or data set is named here.

A method differs from plain training in which parameters it trains when (its plan of phases), in how gradients are averaged
(a reducer), and in what it does at fixed moments (its hooks). Everything else is the one loop in trainer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:  # these packages import this module
    from pufferfish_bench.distributed.world import World
    from pufferfish_bench.training.stopwatch import Stopwatch
    from pufferfish_bench.training.tally import Tally


@dataclass(frozen=True)
class FinalResults:
    """Results computed once from the final model (for example BLEU), and files to save."""

    figures: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # file name -> text, saved next to the record


class Task:
    """What the model learns: the batches of an epoch, the loss of a batch, and the metrics of a model."""

    metric: str  # the main one among the metrics that `evaluate` returns
    higher_is_better: bool
    results_of_best = False  # compute the final results also for the epoch of the last phase with the best metric
    note: str = ""  # printed when the run starts, for example that the data are synthetic

    def prepare(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Called once before training: adapt the batches to `model` (for example to its memory format).

        Raise an InputError if it cannot be trained on this data. `sample` is one input of the model.
        """

    def steps(self, epoch: int) -> int:
        """Number of batches in an epoch."""
        raise NotImplementedError

    def batches(self, epoch: int, start: int) -> Generator[Any]:
        """The batches of an epoch, beginning with number `start`: a pure function of the seed, the epoch and the number.

        The memory of a batch may be reused for the next one. Closing the generator releases its workers and buffers.
        """
        raise NotImplementedError

    def loss(self, model: Callable[..., Tensor], batch: Any) -> Tensor:
        """The loss to minimise: a scalar."""
        raise NotImplementedError

    def count(self, batch: Any) -> Tensor | int:
        """Number of targets that the loss of a batch is the mean of: its weight in the mean loss of an epoch."""
        raise NotImplementedError

    def split(self, batch: Any, parts: int) -> Sequence[Any]:
        """A batch as `parts` smaller ones (fewer if it is too small for that), for gradient accumulation.

        The sum of their losses, each weighted by its `count` over that of the batch, must be the loss of the batch. They are
        computed in this order. A task without this method cannot be trained with `accumulate` above 1.
        """
        raise NotImplementedError

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """The metrics on held-out data. Each rank may evaluate a part of it; all return the same."""
        raise NotImplementedError

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        """More columns that follow from the mean training loss of an epoch, for example perplexity."""
        return {}

    def final_results(self, model: nn.Module) -> FinalResults:
        """Results of the final model beyond the metrics of its last epoch. Called on all ranks."""
        return FinalResults()

    def state_dict(self) -> dict[str, Any]:
        """State that a checkpoint in the middle of an epoch must contain."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


Message = tuple[str, int]  # the name of a collective, and the bytes that each rank passed to it


class Reducer:
    """Replaces the gradients by their mean over all ranks, in place. The base class is for one process and sends nothing."""

    synchronous = True  # every step waits for all ranks
    overlaps = False  # sends gradients while the backward pass still computes others
    supports_loss_scaling = True  # works with AMP loss scaling (scaled, sometimes infinite gradients)

    def __init__(self, *, world: World, watch: Stopwatch):
        self.world = world
        self.watch = watch

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        """Raise an InputError for settings that do not work with this reducer, before training starts."""

    def attach(self, model: nn.Module) -> nn.Module:
        """Prepare for this model, at the start of a phase; return the module to call in the forward pass."""
        return model

    def clear(self, optimizer: Optimizer) -> None:
        """Reset the gradients before a backward pass."""
        optimizer.zero_grad()

    def accumulating(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context for the forward and backward pass of a part of a batch, if another part follows: sends nothing.

        `module` is what `attach` returned.
        """
        return nullcontext()

    def reduce(self) -> list[Message]:
        """Average the gradients; return the messages that were sent."""
        return []

    def sync_buffers(self, model: nn.Module) -> None:
        """Before evaluation: average the running statistics of BatchNorm over ranks."""
        self.world.sync_buffers(model)

    def state_dict(self) -> dict[str, Any]:
        """State of this rank that a checkpoint must contain, for example error feedback."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class Operation:
    """What a surgery did."""

    # plain data (strings and numbers), enough to replay the change; also written to the record. The terminal and
    # pufferfish-describe show these keys: layers (layer -> {figure: number}), left (layer -> reason), note, nonzero_parameters
    details: dict[str, Any]
    optimizer_state: dict[str, dict[str, Any]] = field(default_factory=dict)  # parameter name -> state for the new optimizer


class Surgery:
    """A change to the model at the start of a phase."""

    collective = False  # `operate` is called on all ranks, which share the work through `run.world`

    def operate(self, run: Run) -> Operation:
        """Change `run.model` in place. Called on rank 0 only, unless `collective`; the others call `replay`.

        If `collective`, called on all ranks, and must give their models the same structure. In both cases all ranks then
        receive the tensors and the operation of rank 0. `run.optimizer` is still that of the phase before; not set in the first.
        """
        raise NotImplementedError

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        """Give `model` the structure that `details` describes; its tensors are loaded afterwards.

        `details` may come from an untrusted file: raise a ValueError or a LookupError if they do not fit the model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Phase:
    """A range of epochs with one set of parameters, one optimizer and one reducer."""

    name: str
    epochs: range
    surgery: Surgery | None = None  # at its start
    until: Callable[[Run], bool] | None = None  # ends the phase early; must return the same on all ranks
    reducer: Callable[..., Reducer] | None = None  # replaces the run's reducer
    schedule: Mapping[str, Any] = field(default_factory=dict)  # replaces these settings of the run's schedule
    restart: bool = False  # the schedule starts again at epoch 0


class Method:
    """A way to train. The base class is plain training; a method overrides what it does differently."""

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        """The phases in which `model` is trained, in order. Changes nothing; may be called more than once."""
        return [Phase("train", range(epochs))]

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Raise an InputError for a model, an optimizer or settings that do not work, before training starts."""

    def rehearse(self, model: nn.Module, sample: Sequence[Any]) -> None:
        """Try what the surgeries will do, on a sample of the model's input; raise an InputError if the model will fail then.

        Called after `check`, before training starts. Must leave the model as it was.
        """

    def phase_started(self, run: Run) -> None:
        """Called once per phase on all ranks, after the surgery and before the first step; model, optimizer and reducer are set.

        Not called again when a run resumes: what it sets must be in `state_dict`, and a resumed run continues as if it
        had never stopped.
        """

    def after_backward(self, run: Run) -> None:
        """Called when the gradients are averaged, before the optimizer step."""

    def after_step(self, run: Run) -> None:
        """Called after the optimizer step."""

    def after_epoch(self, run: Run) -> dict[str, float]:
        """Called after an epoch was trained and evaluated, outside the measured time; returns more columns of its row."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State that a checkpoint must contain; the same on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(repr=False)
class Run:
    """The state of training: what is being trained, and how far it is."""

    world: World
    task: Task
    model: nn.Module
    watch: Stopwatch
    tally: Tally  # of the current epoch
    plan: list[Phase]
    phase_index: int = 0
    phase_start: int = 0  # the epoch in which the phase began
    epoch: int = 0
    step: int = 0
    # these three are created at the start of each phase; before the first one they are not set
    module: nn.Module = field(init=False)  # what the forward pass calls: the model, compiled or wrapped
    optimizer: Optimizer = field(init=False)
    reducer: Reducer = field(init=False)
    learning_rate: float = 0.0
    history: list[float] = field(default_factory=list)  # the metric of each epoch, negated if higher is better
    operations: list[dict[str, Any] | None] = field(default_factory=list)  # what the surgery of each phase did, if it has one
    parameters: int = 0
    trainable_parameters: int = 0
    macs: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)  # of the best epoch so far, if the task asks for its results
    final_results: FinalResults = field(default_factory=FinalResults)
    unequal_ranks: Sequence[int] = ()  # those whose weights at the end are not the ones of rank 0

    @property
    def phase(self) -> Phase:
        return self.plan[self.phase_index]

    @property
    def epochs(self) -> int:
        return self.plan[-1].epochs.stop


class Observer:
    """Watches a run and never changes it."""

    def run_started(self, run: Run) -> None:
        """Training starts, or resumes at `run.epoch` and `run.step`."""

    def phase_started(self, run: Run) -> None:
        """A phase starts or resumes; model, optimizer and reducer are set."""

    def step_ended(self, run: Run) -> None: ...

    def evaluation_started(self, run: Run) -> None:
        """The steps of an epoch are done."""

    def evaluation_step(self, run: Run) -> None:
        """A batch is about to be evaluated."""

    def epoch_ended(self, run: Run, row: dict[str, Any]) -> None: ...

    def run_ended(self, run: Run) -> None:
        """The last phase is done."""

    def closed(self) -> None:
        """Training has ended, successfully or not: release resources."""
