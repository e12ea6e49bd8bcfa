"""Nothing in a step reads a number from the device: on a GPU the host would wait for it."""

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pufferfish_bench.core import Method, Observer, Run
from pufferfish_bench.trainer import Trainer
from pufferfish_bench.training import optimizers
from pufferfish_bench.training.loss_reader import LossReader
from pufferfish_bench.training.tally import Tally
from pufferfish_bench.training.terminal import Terminal
from tests.support.rank_experiments import PRUNING
from tests.support.reducers import REDUCERS, reducer_named
from tests.support.training import METHODS, train

FLAT = [name for name in REDUCERS if not name.startswith("ddp")]
WAITS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "unique_dim", "_unique2"}
ALL_METHODS = METHODS | PRUNING
OPTIMIZERS = {
    "sgd": partial(optimizers.sgd, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=False),
    "powersgd_momentum": partial(optimizers.powersgd_momentum, momentum=0.9, weight_decay=1e-4, decay_vectors=False),
    "adam": partial(optimizers.adam, betas=(0.9, 0.98), eps=1e-8, weight_decay=1e-4, decay_vectors=False),
    "adamw": partial(optimizers.adamw, betas=(0.9, 0.98), eps=1e-8, weight_decay=1e-4, decay_vectors=False),
}


class NoWaiting(TorchDispatchMode):
    """Fails at an operation whose result the host needs. An index of booleans has a size that only the device knows."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None) -> Any:
        name = function.overloadpacket.__name__
        indices = arguments[1] if name.startswith("index") and isinstance(arguments[1], list | tuple) else ()
        booleans = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in WAITS or booleans:
            raise AssertionError(f"{function} waits for the device")
        return function(*arguments, **options or {})


def prepared_elsewhere(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches: what draws them works on CPU tensors."""
    while True:
        with _disable_current_modes():
            batch = next(batches)
        yield batch


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that were trained under NoWaiting."""
    done: list[int] = []
    plain = Trainer.train_step

    def train_step(trainer: Trainer, run: Run, batches: Iterator[Any], steps: int) -> None:
        with NoWaiting():
            plain(trainer, run, prepared_elsewhere(batches), steps)
        done.append(run.step)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    return done


@pytest.mark.parametrize("name", FLAT)
def test_no_step_with_a_reducer_waits_for_the_device(tmp_path: Path, steps: list[int], name: str):
    plain = partial(optimizers.sgd, momentum=0.0, nesterov=False, weight_decay=0.0, decay_vectors=True)
    clip = {"optimizer": plain} if name == "signum" else {"clip_norm": 1.0}
    train(tmp_path, METHODS["pufferfish"](), reducer=reducer_named(name), **clip)
    assert len(steps) == 28


@pytest.mark.parametrize("name", ALL_METHODS)
def test_no_step_of_a_method_waits_for_the_device(tmp_path: Path, steps: list[int], name: str):
    train(tmp_path, ALL_METHODS[name](), reducer=reducer_named("bf16"), clip_norm=1.0)
    assert len(steps) >= 28


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_of_an_optimizer_waits_for_the_device(tmp_path: Path, steps: list[int], name: str):
    train(tmp_path, Method(), optimizer=OPTIMIZERS[name])
    assert len(steps) == 28


@pytest.mark.parametrize(
    "wait", [lambda x: x.item(), lambda x: bool(x), lambda x: float(x), lambda x: x[x > 0], lambda x: int(x)]
)
def test_waiting_for_the_device_is_noticed(tmp_path: Path, steps: list[int], wait: Any):
    class Reads(Method):
        def after_backward(self, run: Run) -> None:
            wait(run.model.fc2.bias.grad.sum())

    with pytest.raises(AssertionError, match="waits for the device"):
        train(tmp_path, Reads())


class SlowCopies(LossReader):
    """A reader on a device whose copies end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def must_wait_for(self, tensor: Tensor) -> bool:
        return True

    def copy(self, tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor.clone(), SimpleNamespace(query=lambda: self.done)


def test_the_loss_of_a_device_is_read_when_its_copy_is_done():
    tally, reader = Tally(), SlowCopies()
    assert LossReader().must_wait_for(torch.zeros(())) is False
    tally.add(torch.tensor(3.0), 2, [])
    with NoWaiting():
        assert reader.read(tally) is None  # starts the copy
        assert reader.read(tally) is None
    tally.add(torch.tensor(9.0), 4, [])
    reader.done = True
    assert reader.read(tally) == 3.0
    assert reader.read(tally) is None  # starts the next one
    assert reader.read(tally) == LossReader().read(tally) == 7.0


@pytest.mark.parametrize("reader", [LossReader, SlowCopies])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_terminal_shows_the_mean_loss(tmp_path: Path, reader: type[LossReader], terminal: bool):
    shown = Terminal(console=Console(file=io.StringIO(), force_terminal=terminal, width=200), interval=0)
    shown.loss = reader()
    shown.loss.done = True
    losses: list[float] = []

    class Look(Observer):
        def step_ended(self, run: Run) -> None:
            losses.append(run.tally.mean_loss())
            shown.shown = 0.0  # long ago

    train(tmp_path, Method(), observers=[shown, Look()])
    if terminal:
        assert shown.progress.tasks[0].fields["loss"] in losses
    else:
        lines = [line for line in shown.console.file.getvalue().splitlines() if "step" in line]
        assert lines
        assert all(any(f"loss {loss:.4f}" in line for loss in losses) for line in lines)


def test_a_copy_that_was_started_in_one_epoch_is_not_reported_in_the_next():
    first, second, reader = Tally(), Tally(), SlowCopies()
    first.add(torch.tensor(3.0), 2, [])
    second.add(torch.tensor(5.0), 2, [])
    reader.done = True
    assert reader.read(first) is None  # starts the copy
    assert reader.read(second) is None
    assert reader.read(second) == 5.0
