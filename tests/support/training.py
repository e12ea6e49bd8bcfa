"""Train TinyNet in this process, stop it, resume it, and compare the records."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pufferfish_bench.core import Method, Observer, Reducer, Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.distributed.world import World, single_process
from pufferfish_bench.methods.pufferfish import Pufferfish
from pufferfish_bench.records.files import EPOCHS, read_rows
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.trainer import Stopped, Trainer
from pufferfish_bench.training import optimizers, schedules
from pufferfish_bench.training.checkpoints import Checkpoints
from pufferfish_bench.training.precision import FullPrecision
from pufferfish_bench.training.recorder import Recorder
from tests.support.nets import PUFFERFISH, TinyNet, tiny_task

EPOCHS_TRAINED, STEPS = 4, 7  # 50 images in batches of 8
MEASURED = ("seconds", "slowest", "fastest", "evaluation", "peak_memory", "timed_steps")  # columns that differ between equal runs

METHODS = {
    "vanilla": Method,
    "pufferfish": partial(Pufferfish, warmup_epochs=2, start="svd", momentum="fresh", **PUFFERFISH),
    "carry": partial(Pufferfish, warmup_epochs=2, start="svd", momentum="carry", **PUFFERFISH),
    "hybrid": partial(Pufferfish, warmup_epochs=0, start="random", momentum="fresh", **PUFFERFISH),
}


class StopAfter(Observer):
    """Asks the trainer to stop after a number of steps."""

    def __init__(self, steps: int | None):
        self.left = steps

    def step_ended(self, run: Run) -> None:
        self.left = None if self.left is None else self.left - 1

    def requested(self) -> bool:
        return self.left is not None and self.left <= 0


def step_schedule(*, learning_rate: float, milestone: int) -> Callable:
    """A learning rate that falls to a tenth at a milestone."""
    return partial(
        schedules.steps, learning_rate=learning_rate, milestones=[milestone], factor=0.1, ramp_epochs=0, ramp_from=1.0,
        ramp_again=False,
    )  # fmt: skip


def train(
    directory: Path, method: Method, *, model: type[nn.Module] = TinyNet, task: ImageClassification | None = None,
    world: World | None = None,
    stop_after: int | None = None, observers: list[Observer] = (), **changes: Any,
) -> Run:  # fmt: skip
    """Start or resume a training run in `directory`; `changes` replace arguments of the Trainer."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    world = world or single_process()
    stop = StopAfter(stop_after)
    recorders = [Recorder(directory=directory, manifest={})] if world.rank == 0 else []
    settings = {
        "method": method,
        "epochs": EPOCHS_TRAINED,
        "seed": 5,
        "sample": [torch.zeros(1, 3, 8, 8)],
        "optimizer": partial(optimizers.sgd, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=True),
        "reducer": Reducer,
        "schedule": step_schedule(learning_rate=0.05, milestone=3),
        "precision": FullPrecision(),
        "accumulate": 1,
        "clip_norm": None,
        "wrap": lambda module: module,
        "untimed_steps": 2,
        "checkpoints": Checkpoints(directory=directory / "checkpoints", world=world),
        "checkpoint_every": 1,
        "observers": [stop, *recorders, *observers],
        "stop_requested": stop.requested,
    } | changes
    return Trainer(**settings).fit(world=world, task=task or tiny_task(), model=model())


def record(directory: Path) -> list[dict[str, Any]]:
    """The rows of a run without the columns that a clock or a memory meter measured."""
    rows = read_rows(directory / EPOCHS)
    return [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows]


def uninterrupted_runs(methods: Mapping[str, Callable[[], Method]]) -> Any:
    """A fixture: for each method its name, its run without a stop, and the directory of that run."""

    @pytest.fixture(scope="module", params=methods)
    def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run, Path]:
        directory = tmp_path_factory.mktemp(request.param)
        return request.param, train(directory, methods[request.param]()), directory

    return uninterrupted


def resumed_to_the_same_end(whole: Run, directory: Path, folder: Path, method: Callable[[], Method], *, stop_after: int) -> Run:
    """Stop a run in `folder`, resume it, and check that weights and record equal those of `whole` in `directory`."""
    with pytest.raises(Stopped):
        train(folder, method(), stop_after=stop_after)
    resumed = train(folder, method())
    assert fingerprint(resumed.model) == fingerprint(whole.model)
    assert record(folder) == record(directory)
    return resumed
