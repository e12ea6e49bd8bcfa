"""Rehearse training on torch's meta device, which has shapes and no values: what reads a value, or is on another device, fails.

The real Trainer, methods, reducers and tasks run in a simulated world of two ranks, of which this process is one. Batches are
prepared on the CPU, as by the workers of a loader, and everything else in a step must stay on the device.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from pufferfish_bench.config import parts as assembly
from pufferfish_bench.config.build import build, composed
from pufferfish_bench.core import FinalResults, Run
from pufferfish_bench.distributed.simulated import SimulatedWorld
from pufferfish_bench.lowrank import counting, svd
from pufferfish_bench.methods.lth import PruneAndRewind
from pufferfish_bench.reducers import ddp
from pufferfish_bench.trainer import Trainer
from pufferfish_bench.training import optimizers
from pufferfish_bench.training.tally import Tally
from pufferfish_bench.training.warmup_monitor import WarmupMonitor
from tests.support.reducers import reducer_named

META = torch.device("meta")
READ = 100.0  # every number that is read between steps: a mean is 1, and the loss of all steps is finite
RECIPES = (
    "resnet18_demo",
    "resnet18_distributed",
    "resnet50_eb",
    "transformer_paper_text",
    "transformer_tuned",
)  # for the same nets
NEED_VALUES = ("eb_train", "lth")  # their surgery sorts weights: rank 0 does it with values, and this process is the other rank
SMALL = {  # by kind of input: overrides that leave three batches in an epoch
    "images": ("dataset.train_images=12", "dataset.test_images=4"),
    "text": ("dataset.train_words=52", "dataset.test_words=12", "dataset.segment=4"),
    "sentence pairs": ("dataset.train_pairs=12", "dataset.test_pairs=4"),
}
EPOCHS = {"pufferfish": ("epochs=2", "warmup_epochs=1"), "eb_train": ("epochs=2",), "lth": ("epochs=1", "method.levels=1")}
WITHOUT_MOMENTUM = partial(optimizers.sgd, momentum=0.0, nesterov=False, weight_decay=0.0, decay_vectors=True)


class OffDevice(AssertionError):
    """A tensor in a step is not on the device."""


class MetaWorld(SimulatedWorld):
    """One of two ranks on the meta device. What is read between steps, through `on_host`, is a constant."""

    def __init__(self, rank: int):
        super().__init__(size=2, device=META)
        self.rank = rank
        self.store = object()
        self.rank_0: Callable[[], Any] | None = None  # what rank 0 does in a surgery that is not collective

    def on_host(self, tensor: Tensor) -> Tensor:
        return torch.full(tensor.shape, READ, dtype=tensor.dtype)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)  # torch has none for the meta device, where nothing is drawn

    def broadcast_object(self, thing: Any) -> Any:
        return self.rank_0() if thing is None and self.rank_0 else thing

    def gather(self, thing: Any) -> list[Any]:
        if isinstance(thing, tuple):  # what this rank says about the layers that it factorised, and whether it failed
            return [thing if rank == self.rank else (AnyLayer(), None) for rank in range(self.size)]
        return super().gather(thing)


class AnyLayer(dict[str, Any]):
    """What another rank says about its layers."""

    def __missing__(self, name: str) -> dict[str, float]:
        return {"rank": 1, "energy": 1.0, "seconds": 0.0, "random_energy": 1.0}


class OnDevice(TorchDispatchMode):
    """Fails at an operation of a step that has a tensor on another device, as an argument or as its result.

    A value that is read fails by itself on the meta device. `bookkeeping`: torch's DDP keeps lists of its buckets and of unused
    parameters on the host, as int32.
    """

    def __init__(self, *, bookkeeping: bool):
        super().__init__()
        self.bookkeeping = bookkeeping

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None) -> Any:
        result = SHORTCUTS.get(function, function)(*arguments, **options or {})
        require_meta((arguments, options, result), str(function), bookkeeping=self.bookkeeping)
        return result


class ValuesOfSurgery(OnDevice):
    """A decomposition of a matrix: all on the device, but the host may read values, which are 1 here."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and arguments[0].device == META:
            return arguments[0].dtype == torch.bool or 1.0
        return super().__torch_dispatch__(function, types, arguments, options)


def decomposed(weight: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """`truncated_svd` of a matrix on the meta device by its own code, which product code has no need for; shapes must agree."""
    expected = svd.truncated_svd(weight, rank)
    if not weight.is_meta:
        return expected
    with ValuesOfSurgery(bookkeeping=False):
        found = svd.computed_svd(weight, rank)
        svd.full_svd(
            weight.detach().flatten(1), rank
        )  # what follows if the Gram matrix is not accurate, which no value says here
    assert [(one.shape, one.dtype) for one in found[:2]] == [(one.shape, one.dtype) for one in expected[:2]]
    return found


def batch_norm(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


# The first two are computed in Python by torch, which takes most of the time of a step; the last has no version for this device.
SHORTCUTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: batch_norm_backward,
    torch.ops.aten._fused_sgd_.default: lambda *_, **__: None,  # changes its arguments in place
}


def require_meta(things: Any, where: str, *, bookkeeping: bool = False) -> None:
    for tensor in tree_leaves(things):
        if isinstance(tensor, Tensor) and tensor.device != META and not (bookkeeping and tensor.dtype == torch.int32):
            raise OffDevice(f"{where} has a tensor of shape {tuple(tensor.shape)} on {tensor.device}")


class Shortcuts(TorchDispatchMode):
    """Shapes only, where torch takes long to find them."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None) -> Any:
        return SHORTCUTS.get(function, function)(*arguments, **options or {})


class Rehearsal(Trainer):
    """A trainer whose steps must stay on the device, and that lists them by phase."""

    def train_step(self, run: Run, batches: Iterator[Any], steps: int) -> None:
        with OnDevice(bookkeeping=isinstance(run.reducer, ddp.DDP)):
            super().train_step(run, prepared(batches), steps)
        self.trained = [*getattr(self, "trained", []), (run.phase.name, type(run.reducer).__name__)]

    others: Sequence[str] = ()  # further reducers, with each of which the first step of every phase is taken before

    def train_phase(self, run: Run) -> None:
        """First one step with each of the other reducers, on a copy of the model."""
        model, own = run.model, (self.reducer, self.optimizer, self.clip_norm)
        for name in self.others:
            run.model, self.clip_norm = copy.deepcopy(model), None  # clipping does not depend on the reducer
            self.choose(name)
            try:
                self.prepare_phase(run)
                with closing(run.task.batches(run.epoch, 0)) as batches:
                    run.model.train()
                    self.train_step(run, batches, 1)
            except Exception as error:
                raise AssertionError(f"phase {run.phase.name} with reducer={name}: {error!r}") from error
            self.optimizer = own[1]
        run.model, run.tally = model, Tally()
        self.reducer, self.optimizer, self.clip_norm = own
        self.prepare_phase(run)
        super().train_phase(run)

    def choose(self, reducer: str) -> None:
        self.reducer = reducer_named(reducer)
        if reducer == "signum":
            self.optimizer, self.clip_norm = WITHOUT_MOMENTUM, None

    def start_phase(self, run: Run) -> None:
        run.world.rank_0 = lambda: operation_of_rank_0(run)
        super().start_phase(run)
        require_meta(list(run.model.state_dict().values()), f"the model in phase {run.phase.name}")


def prepared(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches, prepared outside OnDevice; a batch itself must be on the device."""
    while True:
        with _disable_current_modes():
            batch = next(batches)
        require_meta(batch, "a batch")
        yield batch


def operation_of_rank_0(run: Run) -> Any:
    """What rank 0, which has values, does in the surgery of a phase."""
    twin = copy.deepcopy(run.model).to_empty(device="cpu")
    for tensor in twin.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape))
    surgery = run.phase.surgery
    if isinstance(surgery, PruneAndRewind):
        surgery.method.keep_start(twin)
    return surgery.operate(replace_model(run, twin))


def replace_model(run: Run, model: torch.nn.Module) -> Any:
    return SimpleNamespace(model=model, epoch=run.epoch, phase_index=run.phase_index, world=run.world)


def summed(tensor: Tensor, *_: Any, async_op: bool = False, **__: Any) -> Any:
    """An allreduce that has ended: torch's fake process group forgets the tensors."""
    future: Any = torch.futures.Future()
    future.set_result([tensor])
    return SimpleNamespace(get_future=lambda: future) if async_op else None


class WithoutSync(DistributedDataParallel):
    """DDP that does not compare the shapes of all parameters between ranks, by value, when it is built."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, init_sync=False, **options)


@pytest.fixture
def meta_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What lets steps run on the meta device; none of it is inside a step.

    What a method measures at the start of a phase or after an epoch reads values. torch's optimizers know their fused kernels for
    the meta device, but do not say so.
    """
    monkeypatch.setattr(WarmupMonitor, "start", lambda *_: None)
    monkeypatch.setattr(sys.modules["pufferfish_bench.lowrank.factorise"], "truncated_svd", decomposed)
    monkeypatch.setattr(counting, "macs", lambda *_: {"": 0})  # tested elsewhere, and slow
    monkeypatch.setattr(ddp, "DistributedDataParallel", WithoutSync)
    optimizer = sys.modules["torch.optim.optimizer"]
    fused = optimizer._get_fused_kernels_supported_devices()
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused, "meta"])
    monkeypatch.setattr(dist, "all_reduce", summed)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@cache
def settings(model: str, method: str, accumulate: int = 1) -> DictConfig:
    """The settings of a model and a method at their smallest. A part of a batch has two samples, for BatchNorm."""
    chosen = [f"model={model}", *(["model.net._target_=torchvision.models.resnet18"] if model == "any" else [])]
    epochs = EPOCHS.get(method, ("epochs=1", "warmup_epochs=0"))
    common = [*chosen, "profile=smoke", "data_root=.", "channels_last=true", "clip_norm=1.0", "dataset.test_batch_size=2"]
    kind = composed(common).model.kind
    return composed(
        [*common, *SMALL[kind], f"batch_size={2 * accumulate}", f"accumulate={accumulate}", f"method={method}", *epochs]
    )


def built_on(device: str, *arguments: Any) -> Any:
    with torch.device(device):
        return build(*arguments)


@cache
def built(model: str, method: str, accumulate: int) -> tuple[Any, Any, Any]:
    """The parts of a run on the meta device, its task and a sample; each run uses a copy of the model."""
    config, world = settings(model, method, accumulate), MetaWorld(rank=0)
    with pytest.MonkeyPatch.context() as patch:
        # on the device from the beginning: a model that is moved to it loses the ties between its weights, unlike on CUDA
        patch.setattr(
            assembly, "build", lambda group, *arguments: built_on("meta" if group == "model" else "cpu", group, *arguments)
        )
        parts = assembly.build_parts(config, world)
    task, sample = assembly.build_task(config, parts, world)
    task.final_results = lambda model: FinalResults()  # a beam search asks the device after every word
    return parts, task, sample


class NoCheckpoints:
    """Where there are no values, there is nothing to save."""

    def load(self) -> None: ...

    def save(self, *_: Any) -> None: ...

    def paths(self) -> list[Path]:
        return []


def rehearse(
    model: str, method: str, reducer: str, *, others: Sequence[str] = (), steps: int = 1, accumulate: int = 1,
    change: Callable[[Rehearsal], None] | None = None,
) -> Rehearsal:  # fmt: skip
    """Train with a model, a method and a reducer on the meta device, with this many steps in each epoch and parts in each batch.

    `others` are reducers with which one step of each phase is taken besides. `change` may change the trainer before.
    """
    config, world = settings(model, method, accumulate), MetaWorld(rank=int(method in NEED_VALUES))
    parts, task, sample = built(model, method, accumulate)
    method_of_run = assembly.build_method(config.method, parts.layers)
    fresh = replace(parts, model=copy.deepcopy(parts.model), method=method_of_run)
    task.steps = lambda epoch: steps
    trainer = assembly.trainer_of(
        fresh, config, sample=sample, directory=Path("unused"), world=world, observers=[], stop_requested=lambda: False,
    )  # fmt: skip
    trainer.__class__ = Rehearsal
    trainer.checkpoints = NoCheckpoints()
    trainer.others = others
    trainer.method.after_epoch = lambda run: {}
    trainer.choose(reducer)
    if change:
        change(trainer)
    with Shortcuts():
        trainer.fit(world=world, task=task, model=fresh.model)
    return trainer
