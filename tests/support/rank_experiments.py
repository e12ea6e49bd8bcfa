"""What two ranks do together: each experiment takes the world and an empty folder of its own.

It returns tensors and plain data, which the test of that experiment checks. tests/support/ranks.py runs them.
"""

import contextlib
import gc
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method, Run
from pufferfish_bench.distributed import factorisation
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.distributed.world import World
from pufferfish_bench.methods.eb_train import EBTrain
from pufferfish_bench.methods.lth import LTH
from pufferfish_bench.methods.pufferfish import Pufferfish
from pufferfish_bench.records.files import EPOCHS, read_rows
from pufferfish_bench.records.reader import FORMAT
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import checkpoints
from pufferfish_bench.training.checkpoints import Checkpoints
from tests.support import training
from tests.support.nets import PUFFERFISH, TO_FACTORISE, Plain, TinyNet, every_kind_of_layer, tiny_task
from tests.support.reducers import REDUCERS, attached, backward, reducer_named
from tests.support.solvers import Solvers

BATCH = 8  # of all ranks together
FLAT = [name for name in REDUCERS if not name.startswith("ddp")]
SYNCHRONOUS = [name for name in REDUCERS if name != "none"]  # those that keep the ranks' weights equal
pufferfish = partial(Pufferfish, warmup_epochs=1, start="svd", momentum="fresh", **PUFFERFISH)
PRUNING = {
    "eb_train": partial(
        EBTrain, prune_ratio=0.5, penalty=0.01, masks=2, distance=1.1, search_epochs=2, search_milestones=None, reinit=False
    ),
    "lth": partial(LTH, prune_share=0.3, rewind_steps=2, levels=1, sparsity=None, layers={}),
}


def train(world: World, folder: Path, *, reducer: str, method: Method | None = None, images: int = 50, **changes: Any) -> Run:
    """Train for three epochs; all ranks together use a batch of 8."""
    world = World(rank=world.rank, size=world.size, device=world.device, store=world.store)  # a run of its own
    return training.train(
        folder, method or Method(), reducer=reducer_named(reducer), epochs=3, untimed_steps=1,
        schedule=training.step_schedule(learning_rate=0.02, milestone=2),
        world=world, task=tiny_task(world=world, images=images, test_images=21, batch_size=BATCH // world.size), **changes,
    )  # fmt: skip


def final_hash(*arguments: Any, **settings: Any) -> str | None:
    """The hash of the trained model, or None if the run was stopped."""
    with contextlib.suppress(Stopped):
        return fingerprint(train(*arguments, **settings).model)


def own_checkpoints(world: World, folder: Path) -> Path:
    return folder / "checkpoints" / (f"rank{world.rank}" if world.rank else "")


def reduction(world: World, folder: Path, name: str) -> list[dict[str, Any]]:
    """Three reductions of known gradients: what was given, what came out, what was sent."""
    torch.manual_seed(0)
    model = TinyNet()
    reducer = attached(name, model, world)
    random = torch.Generator().manual_seed(world.rank)
    steps = []
    for _ in range(3):
        given = {key: torch.randn(p.shape, generator=random) for key, p in model.named_parameters()}
        backward(reducer, model, given)
        with reducer.watch.step():
            messages = reducer.reduce()
        left = {key: p.grad.clone() for key, p in model.named_parameters()}
        steps.append({"given": given, "left": left, "messages": messages})
    return steps


def powersgd_after_zero_gradients(world: World, folder: Path) -> dict[str, Any]:
    """PowerSGD's output and state for gradients that are zero, then of rank 1, then of full rank; on rank 0 always zero."""
    model = nn.Linear(20, 30, bias=False)
    reducer = attached("powersgd", model, world)
    random = torch.Generator().manual_seed(world.rank)
    given, left = [], []
    for rank in (0, 1, 1, 20, 20):
        gradient = torch.randn(30, rank, generator=random) @ torch.randn(rank, 20, generator=random) * world.rank
        given.append(gradient)
        backward(reducer, model, {"weight": gradient})
        with reducer.watch.step():
            reducer.reduce()
        left.append(model.weight.grad.clone())
    return {"given": given, "left": left, "error": reducer.error.view(30, 20), "q": reducer.second}


def waiting(world: World, folder: Path) -> dict[str, float]:
    """Seconds of each section of a reduction for which rank 1 comes late."""
    model = TinyNet()
    reducer = attached("bf16", model, world)
    backward(reducer, model, {name: torch.ones(p.shape) for name, p in model.named_parameters()})
    world.barrier()
    if world.rank == 1:
        time.sleep(0.5)
    with reducer.watch.step():
        reducer.reduce()
    return reducer.watch.take()[0]


def joined_batch(world: World, folder: Path, name: str, accumulate: int) -> dict[str, Any]:
    """A model without BatchNorm after three epochs: its weights, and what was sent."""
    run = train(world, folder, reducer=name, model=Plain, images=48, accumulate=accumulate)
    row = read_rows(folder / EPOCHS)[-1] if world.rank == 0 else {}
    return {"weights": run.model.state_dict()} | {key: row.get(key) for key in ("messages", "bytes_sent", "seconds_communicate")}


def resumed(world: World, folder: Path, name: str) -> list[str | None]:
    """Pufferfish with one reducer: hashes of an uninterrupted run, then of runs that the last rank stopped, and resumed."""
    go = partial(final_hash, world, reducer=name)
    hashes = [go(folder / "whole", method=pufferfish())]
    for steps in (3, 10):
        stop_after = steps if world.rank == world.size - 1 else None
        assert go(folder / str(steps), method=pufferfish(), stop_after=stop_after) is None
        hashes.append(go(folder / str(steps), method=pufferfish()))
    return hashes


def pruned(world: World, folder: Path, name: str) -> list[str | None]:
    """A pruning method: hashes of an uninterrupted run and of one that the last rank stopped, and resumed."""
    go, method = partial(final_hash, world, reducer="allreduce"), PRUNING[name]
    whole = go(folder / "whole", method=method())
    assert go(folder / "stopped", method=method(), stop_after=17 if world.rank == world.size - 1 else None) is None
    return [whole, go(folder / "stopped", method=method())]


def different_weights(world: World, folder: Path) -> str:
    """The error message when the ranks start with different weights."""

    class Individual(TinyNet):
        def __init__(self) -> None:
            super().__init__()
            self.fc2.bias.data += world.rank

    try:
        train(world, folder, reducer="allreduce", model=Individual)
    except ValueError as error:
        return str(error)
    return "no error"


def stop_without_communication(world: World, folder: Path) -> list[str]:
    """The newest checkpoint when rank 0 is asked to stop and the ranks exchange no gradients."""
    assert final_hash(world, folder, reducer="none", stop_after=2 if world.rank == 0 else None) is None
    return sorted(path.name for path in own_checkpoints(world, folder).glob("*.pt"))[-1:]


def lost_checkpoints(world: World, folder: Path) -> str:
    """The error message when one rank has lost its checkpoints."""
    assert final_hash(world, folder, reducer="allreduce", stop_after=3) is None
    if world.rank == 1:
        shutil.rmtree(own_checkpoints(world, folder))
    world.barrier()
    try:
        train(world, folder, reducer="allreduce")
    except ValueError as error:
        return str(error)
    return "no error"


def checkpoint_that_does_not_fit(world: World, folder: Path) -> dict[str, Any]:
    """Resume a run in which the newest checkpoint of rank 1 has a buffer of another shape."""
    go = partial(final_hash, world, reducer="powersgd")
    whole, stopped = go(folder / "whole"), go(folder / "stopped", stop_after=9)
    own = own_checkpoints(world, folder / "stopped")
    if world.rank == 1:
        newest = max(own.glob("*.pt"))
        state = checkpoints.read(newest)
        state["local"]["buffers"]["norm.running_mean"] = torch.zeros(3)
        checkpoints.write(newest, state)
    world.barrier()
    resumed = go(folder / "stopped")
    return {"whole": whole, "stopped": stopped, "resumed": resumed, "aside": sorted(path.name for path in own.glob("*.damaged"))}


def half_written_first_checkpoint(world: World, folder: Path) -> tuple[Any, list[str]]:
    """What is loaded, and which files remain, after a kill when only rank 0 had written the first checkpoint."""
    keeper = Checkpoints(directory=folder / "checkpoints", world=world)
    if world.rank == 0:
        keeper.directory.mkdir(parents=True)
        state = {"format": FORMAT, "shared": {"epoch": 1, "step": 0}, "local": {}}
        checkpoints.write(keeper.directory / "epoch00001-step0000000.pt", state)
    world.barrier()
    return keeper.load(), [path.name for path in keeper.paths()]


def memory_under_ddp(world: World, folder: Path) -> dict[str, Any]:
    """Bytes of all parameters alive before the run and in each phase, and of the final model."""

    def alive() -> int:
        gc.collect()
        return sum(t.nbytes for t in {id(t): t for t in gc.get_objects() if isinstance(t, nn.Parameter)}.values())

    class Weigh(Method):
        def plan(self, epochs: int, model: nn.Module) -> list:
            return pufferfish().plan(epochs, model)

        def after_step(self, run: Run) -> None:
            weighed.setdefault(run.phase.name, alive())

    weighed = {"before": alive()}
    run = train(world, folder, reducer="ddp", method=Weigh())
    return weighed | {"final": sum(p.nbytes for p in run.model.parameters())}


def shared_factorisation(world: World, folder: Path) -> dict[str, Any]:
    """A model factorised by all ranks together: its tensors, what is recorded, and what this rank computed."""
    model = every_kind_of_layer()
    for parameter in model.parameters():
        world.broadcast([parameter.detach()])
    with Solvers() as solvers:
        done = factorisation.factorise(world, model, TO_FACTORISE)
    last = model.get_submodule("0.u").weight.is_contiguous(memory_format=torch.channels_last)
    return {"tensors": model.state_dict(), "done": done, "solved": solvers.calls, "channels_last": last}


def carried_momentum(world: World, folder: Path) -> dict[str, Any]:
    """Pufferfish that keeps its momentum: the state after the switch, the record of it, and hashes of whole and resumed runs."""
    noted = {}

    class Noted(Pufferfish):
        def phase_started(self, run: Run) -> None:
            super().phase_started(run)
            if run.phase.name == "low_rank":
                names = {p: name for name, p in run.model.named_parameters()}
                noted["momentum"] = {names[p]: state["momentum_buffer"].clone() for p, state in run.optimizer.state.items()}
                noted["operation"] = run.operations[-1]

    method = partial(Noted, warmup_epochs=1, start="svd", momentum="carry", **PUFFERFISH)
    go = partial(final_hash, world, reducer="allreduce")
    hashes = [go(folder / "whole", method=method())]
    after_the_switch = dict(noted)
    assert go(folder / "stopped", method=method(), stop_after=10 if world.rank == 1 else None) is None
    hashes.append(go(folder / "stopped", method=method()))
    return after_the_switch | {"hashes": hashes}


def diverged_layer(world: World, folder: Path, layer: str) -> str:
    """The error message when one layer is not finite at the switch: only one rank factorises it."""

    class Diverging(Pufferfish):
        def after_epoch(self, run: Run) -> dict[str, float]:
            row = super().after_epoch(run)
            run.model.get_submodule(layer).weight.detach().view(-1)[3] = torch.nan
            return row

    try:
        train(world, folder, reducer="allreduce", method=Diverging(warmup_epochs=1, start="svd", momentum="fresh", **PUFFERFISH))
    except InputError as error:
        return str(error)
    return "no error"


EXPERIMENTS: dict[str, Callable[[World, Path], Any]] = {
    **{f"reduction-{name}": partial(reduction, name=name) for name in FLAT},
    **{
        f"joined_batch-{name}-{parts}": partial(joined_batch, name=name, accumulate=parts)
        for name in ("allreduce", "ddp")
        for parts in (1, 2)
    },
    **{f"resumed-{name}": partial(resumed, name=name) for name in SYNCHRONOUS},
    **{f"pruned-{name}": partial(pruned, name=name) for name in PRUNING},
    **{
        experiment.__name__: experiment
        for experiment in (
            powersgd_after_zero_gradients, different_weights, stop_without_communication, lost_checkpoints,
            checkpoint_that_does_not_fit, half_written_first_checkpoint, memory_under_ddp, waiting,
        )
    },
}  # fmt: skip

# for test_factorisation.py
FACTORISATION: dict[str, Callable[[World, Path], Any]] = {
    "shared_factorisation": shared_factorisation,
    "carried_momentum": carried_momentum,
    **{f"diverged-{layer}": partial(diverged_layer, layer=layer) for layer in ("conv2", "fc1")},
}
