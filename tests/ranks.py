"""What several ranks do together, for the tests: started by torchrun, leaves what it found as FOLDER/rank<N>.pt.

Each experiment is a function of the world; it returns tensors and plain data for test_workers.py to judge.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from pufferfish_bench import checkpoints, optimizers, schedules
from pufferfish_bench.checkpoints import Checkpoints, fingerprint
from pufferfish_bench.core import Method, Reducer, Run
from pufferfish_bench.main import build
from pufferfish_bench.methods.eb_train import EBTrain
from pufferfish_bench.methods.lth import LTH
from pufferfish_bench.methods.pufferfish import Pufferfish
from pufferfish_bench.observers import Recorder
from pufferfish_bench.precision import FullPrecision
from pufferfish_bench.stopwatch import Stopwatch
from pufferfish_bench.tasks.images import Images
from pufferfish_bench.tasks.memory import in_memory
from pufferfish_bench.trainer import Stopped, Trainer
from pufferfish_bench.world import World, join
from tests.conftest import PUFFERFISH, REPOSITORY, TinyNet
from tests.test_trainer import StopAfter

REDUCERS = sorted(path.stem for path in (REPOSITORY / "conf" / "reducer").glob("*.yaml"))
BATCH = 8  # of all ranks together
EPOCHS = 3


def reducer_named(name: str, **changes: Any) -> Callable[..., Reducer]:
    """A reducer as conf/ has it."""
    config = OmegaConf.create({"seed": 3, "measure_wait": True, "reducer": {}})
    config.reducer = OmegaConf.merge(OmegaConf.load(REPOSITORY / "conf" / "reducer" / f"{name}.yaml"), changes)
    return build(config.reducer)


class Plain(nn.Module):
    """No BatchNorm and no dropout: a batch in two parts is the same as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc1 = nn.Linear(6 * 64, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(self.conv(images).relu().flatten(1)).relu())


def task(world: World, images: int = 50) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % 4
    return in_memory(
        train=(pixels, labels), test=(pixels[:21], labels[:21]), classes=4, mean=(0.5,) * 3, std=(0.25,) * 3,
        label_smoothing=0.0, batch_size=BATCH // world.size, test_batch_size=6, seed=1, world=world,
    )  # fmt: skip


def train(
    world: World, folder: Path, *, reducer: Callable[..., Reducer], model: type[nn.Module] = TinyNet,
    method: Method | None = None, stop_after: int | None = None, images: int = 50,
) -> Run:  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    stop = StopAfter(stop_after)
    world = World(rank=world.rank, size=world.size, device=world.device, store=world.store)  # a run of its own
    trainer = Trainer(
        method=method or Method(), epochs=EPOCHS, seed=5, sample=[torch.zeros(1, 3, 8, 8)],
        optimizer=partial(optimizers.sgd, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=True),
        reducer=reducer,
        schedule=partial(
            schedules.steps, learning_rate=0.02, milestones=[2], factor=0.1, ramp_epochs=0, ramp_from=1.0, ramp_again=False
        ),
        precision=FullPrecision(), clip_norm=None, wrap=lambda module: module, untimed_steps=1,
        checkpoints=Checkpoints(directory=folder / "checkpoints", world=world), checkpoint_every=1,
        observers=[stop, *([Recorder(directory=folder, manifest={})] if world.rank == 0 else [])],
        stop_requested=stop.requested,
    )  # fmt: skip
    return trainer.fit(world=world, task=task(world, images), model=model())


def one_reduction(world: World, folder: Path) -> dict[str, Any]:
    """What each flat reducer makes of gradients that are known, twice, and what it sends."""
    found = {}
    for name in REDUCERS:
        if name.startswith("ddp"):
            continue
        torch.manual_seed(0)
        model = TinyNet()
        reducer = reducer_named(name)(world=world, watch=Stopwatch(device=world.device, untimed_steps=0))
        reducer.attach(model)
        random = torch.Generator().manual_seed(world.rank)
        steps = []
        for _ in range(2):
            given = {key: torch.randn(p.shape, generator=random) for key, p in model.named_parameters()}
            for key, p in model.named_parameters():
                p.grad = given[key].clone() if p.grad is None else p.grad.copy_(given[key])
            with reducer.watch.step():
                messages = reducer.reduce()
            left = {key: p.grad.clone() for key, p in model.named_parameters()}
            steps.append({"given": given, "left": left, "messages": messages})
        found[name] = {"steps": steps, "state": {k: v for k, v in reducer.state_dict().items() if k != "random"}}
    return found


def died_and_reborn(world: World, folder: Path) -> dict[str, Any]:
    """What PowerSGD makes of gradients that are zero, then of rank 1, then full (rank 0 has none), and what it holds."""
    model = nn.Linear(20, 30, bias=False)
    reducer = reducer_named("powersgd")(world=world, watch=Stopwatch(device=world.device, untimed_steps=0))
    reducer.attach(model)
    random = torch.Generator().manual_seed(world.rank)
    given, left = [], []
    for rank in (0, 1, 1, 20, 20):
        gradient = torch.randn(30, rank, generator=random) @ torch.randn(rank, 20, generator=random) * world.rank
        given.append(gradient)
        model.weight.grad.copy_(gradient)
        with reducer.watch.step():
            reducer.reduce()
        left.append(model.weight.grad.clone())
    return {"given": given, "left": left, "error": reducer.error.view(30, 20), "q": reducer.second}


def joined_batches(world: World, folder: Path) -> dict[str, Any]:
    """The weights after an epoch and more without BatchNorm, by engine."""
    return {
        name: train(world, folder / f"plain-{name}", reducer=reducer_named(name), model=Plain, images=48).model.state_dict()
        for name in ("allreduce", "ddp")
    }


def resumed(world: World, folder: Path) -> dict[str, Any]:
    """For each reducer, through the switch: the hash of an uninterrupted run and of runs that rank 1 stopped."""
    found = {}
    for name in REDUCERS:
        if name == "none":  # its ranks go their own ways
            continue

        def go(folder: Path, stop_after: int | None = None, name: str = name) -> str | None:
            method = Pufferfish(warmup_epochs=1, start="svd", momentum="fresh", **PUFFERFISH)
            try:
                run = train(world, folder, reducer=reducer_named(name), method=method, stop_after=stop_after)
            except Stopped:
                return None
            return fingerprint(run.model)

        hashes = [go(folder / f"{name}-whole")]
        for steps in (3, 10):
            assert go(folder / f"{name}-{steps}", steps if world.rank == world.size - 1 else None) is None
            hashes.append(go(folder / f"{name}-{steps}"))
        found[name] = hashes
    return found


def pruned(world: World, folder: Path) -> dict[str, Any]:
    """For each pruning method: the hash of an uninterrupted run and of one that rank 1 stopped, and the parameters left."""
    methods = {
        "eb_train": partial(
            EBTrain, prune_ratio=0.5, penalty=0.01, masks=2, distance=1.1, search_epochs=2, search_milestones=None, reinit=False
        ),
        "lth": partial(LTH, prune_share=0.3, rewind_steps=2, levels=1, sparsity=None, layers={}),
    }
    found = {}
    for name, method in methods.items():
        whole = train(world, folder / f"{name}-whole", reducer=reducer_named("allreduce"), method=method())
        with contextlib.suppress(Stopped):
            stop = 17 if world.rank == world.size - 1 else None
            train(world, folder / name, reducer=reducer_named("allreduce"), method=method(), stop_after=stop)
        again = train(world, folder / name, reducer=reducer_named("allreduce"), method=method())
        found[name] = [fingerprint(whole.model), fingerprint(again.model)]
    return found


def disagreement(world: World, folder: Path) -> str:
    """What is said when a rank has other weights."""

    class Individual(TinyNet):
        def __init__(self) -> None:
            super().__init__()
            self.fc2.bias.data += world.rank

    try:
        train(world, folder / "individual", reducer=reducer_named("allreduce"), model=Individual)
    except ValueError as error:
        return str(error)
    return "nothing"


def silent_stop(world: World, folder: Path) -> list[str]:
    """Where ranks that do not communicate stop when one of them wishes it."""
    place = folder / "silent"
    try:
        train(world, place, reducer=reducer_named("none"), stop_after=2 if world.rank == 0 else None)
    except Stopped:
        own = place / "checkpoints" / (f"rank{world.rank}" if world.rank else "")
        return sorted(path.name for path in own.glob("*.pt"))[-1:]
    return []


def unequal(world: World, folder: Path) -> str:
    """What is said when a rank has lost its checkpoints."""
    place = folder / "unequal"
    with contextlib.suppress(Stopped):
        train(world, place, reducer=reducer_named("allreduce"), stop_after=3)
    if world.rank == 1:
        shutil.rmtree(place / "checkpoints" / "rank1")
    world.barrier()
    try:
        train(world, place, reducer=reducer_named("allreduce"))
    except ValueError as error:
        return str(error)
    return "nothing"


def foreign(world: World, folder: Path) -> tuple[list[str | None], list[str]]:
    """A run of which one rank's newest checkpoint has a buffer of another shape: its hash beside the whole one, what is left."""

    def go(place: Path, stop_after: int | None = None) -> str | None:
        try:
            return fingerprint(train(world, place, reducer=reducer_named("powersgd"), stop_after=stop_after).model)
        except Stopped:
            return None

    hashes = [go(folder / "foreign-whole"), go(folder / "foreign", 9)]
    own = folder / "foreign" / "checkpoints" / (f"rank{world.rank}" if world.rank else "")
    if world.rank == 1:
        newest = max(own.glob("*.pt"))
        state = checkpoints.read(newest)
        state["local"]["buffers"]["norm.running_mean"] = torch.zeros(3)
        checkpoints.write(newest, state)
    world.barrier()
    return [*hashes, go(folder / "foreign")], sorted(path.name for path in own.glob("*.damaged"))


def cut_short(world: World, folder: Path) -> tuple[Any, list[str]]:
    """What is loaded, and left, after a kill while only rank 0 had written the first checkpoint."""
    keeper = Checkpoints(directory=folder / "cut_short", world=world)
    if world.rank == 0:
        keeper.directory.mkdir()
        checkpoints.write(keeper.directory / "epoch00001-step0000000.pt", {"shared": {"epoch": 1, "step": 0}, "local": {}})
    world.barrier()
    return keeper.load(), [path.name for path in keeper.paths()]


def freed(world: World, folder: Path) -> dict[str, Any]:
    """Bytes of the parameters that are alive in a phase, under DDP."""
    import gc

    class Weigh(Method):
        def plan(self, epochs: int, model: nn.Module) -> list:
            return Pufferfish(
                warmup_epochs=1, start="svd", momentum="fresh", **PUFFERFISH
            ).plan(epochs, model)  # fmt: skip

        def after_step(self, run: Run) -> None:
            gc.collect()
            alive = {id(t): t for t in gc.get_objects() if isinstance(t, nn.Parameter)}
            weighed.setdefault(run.phase.name, sum(t.nbytes for t in alive.values()))

    weighed: dict[str, int] = {}
    gc.collect()
    before = sum(t.nbytes for t in gc.get_objects() if isinstance(t, nn.Parameter))
    run = train(world, folder / "freed", reducer=reducer_named("ddp"), method=Weigh())
    return {"before": before, "alive": weighed, "low_rank": sum(p.nbytes for p in run.model.parameters())}


EXPERIMENTS = (
    one_reduction, died_and_reborn, joined_batches, resumed, pruned, disagreement, silent_stop, unequal, foreign, cut_short, freed
)  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    together = join("cpu", timeout=600, warn_after=60)
    results = {experiment.__name__: experiment(together, place) for experiment in EXPERIMENTS}
    torch.save(results, place / f"rank{together.rank}.pt")
