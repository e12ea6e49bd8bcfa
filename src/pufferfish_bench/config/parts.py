"""The parts of a run: build them from a config, check them, and assemble a trainer. Imports torch."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base import cores
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import batches
from pufferfish_bench.config.build import RESOLVED, build, build_method, sample_of, try_model
from pufferfish_bench.config.checks import check_groups, check_plan, check_rates, check_reducer, refuse_nonsense
from pufferfish_bench.config.settings import conditions, plain, settings_of
from pufferfish_bench.core import Method, Observer, Reducer, Task
from pufferfish_bench.distributed import network
from pufferfish_bench.distributed.world import World
from pufferfish_bench.lowrank import counting
from pufferfish_bench.records.environment import environment, tf32_in_use
from pufferfish_bench.trackers.tracker import Tracker
from pufferfish_bench.trainer import Trainer
from pufferfish_bench.training import memory_format
from pufferfish_bench.training.checkpoints import Checkpoints
from pufferfish_bench.training.memory import keep_freed_memory
from pufferfish_bench.training.precision import allow_tf32
from pufferfish_bench.training.schedules import times

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a run, except for its data."""

    model: nn.Module
    method: Method
    schedule: Callable[..., float]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    reducer: Callable[..., Reducer]
    precision: Any
    layers: Mapping[str, Any] | None = None  # the method's `layers` after `auto` was resolved; None if they do not have it


def build_parts(config: DictConfig, world: World) -> Parts:
    """Build all parts except the data, which may take long to load."""
    set_up_torch(config, world)
    precision = build("precision", config.precision)
    precision.prepare(world.device)
    check_groups(config)
    groups = ("method", "schedule", "optimizer", "reducer")
    built = {group: build(group, config[group]) for group in groups}
    built["schedule"] = times(built["schedule"], config.schedule.scaled_by)
    torch.manual_seed(config.seed)
    model = build("model", config.model).to(world.device)
    memory_format.prepare(model, world.device, config.channels_last)
    sample = sample_on(world, config)
    try_model(lambda: counting.forward(model, *sample), sample)
    layers = resolved_layers(config, model)
    if layers is not None:
        built["method"] = build_method(config.method, layers)
    return Parts(model=model, precision=precision, layers=layers, **built)


def resolved_layers(config: DictConfig, model: nn.Module) -> Mapping[str, Any] | None:
    """The `layers` of the method with `auto` replaced by names and reasons; None if they do not have it."""
    layers = plain(config.method.get("layers"))
    return lowrank.resolve(model, sample_of(config), layers) if lowrank.is_auto(layers) else None


def set_up_torch(config: DictConfig, world: World) -> None:
    if world.device.type == "cpu":
        keep_freed_memory()
    allow_tf32(config.tf32)
    if config.tf32 and not tf32_in_use(world.device) and world.rank == 0:
        log.warning("tf32=true has no effect here: only NVIDIA GPUs from compute capability 8.0 on have TF32")
    torch.backends.cudnn.deterministic = config.deterministic
    torch.backends.cudnn.benchmark = not config.deterministic


def try_parts(parts: Parts, config: DictConfig, world: World) -> None:
    """Refuse parts that do not work, by themselves or together."""
    model, method, optimizer = parts.model, parts.method, parts.optimizer

    def try_reducers() -> None:
        own = (phase.reducer for phase in method.plan(config.epochs, model) if phase.reducer)
        for make in (parts.reducer, *own):
            check_reducer(make(world=world, watch=None), optimizer(model), config.clip_norm, parts.precision)

    refuse_nonsense("optimizer", lambda: optimizer(model))
    refuse_nonsense("method", lambda: (check_plan(method.plan(config.epochs, model)), method.check(model, optimizer(model))))
    method.rehearse(model, sample_on(world, config))
    refuse_nonsense("schedule", lambda: check_rates(parts.schedule, method.plan(config.epochs, model)))
    refuse_nonsense("reducer", try_reducers)


def build_task(config: DictConfig, parts: Parts, world: World) -> tuple[Task, list[torch.Tensor]]:
    """The task and a sample of its data."""
    task = build("dataset", config.dataset, world=world)
    sample = sample_on(world, config)
    if config.accumulate > 1 and type(task).split is Task.split:
        raise InputError(
            f"accumulate={config.accumulate}: {type(task).__name__} cannot split a batch; give it the method split, which "
            "pufferfish_bench.core.Task describes, or use accumulate=1"
        )
    task.prepare(parts.model, sample)
    return task, sample


def sample_on(world: World, config: DictConfig) -> list[torch.Tensor]:
    """One input of the model, on the device of this rank."""
    return [tensor.to(world.device) for tensor in sample_of(config)]


def manifest(config: DictConfig, world: World, layers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What run.json records before a run starts: its settings, what `auto` in them was resolved to, and its conditions."""
    found = {"settings": settings_of(config), **environment(world.device), "data": conditions(config), "world_size": world.size}
    found["batch"] = batches.record(config)
    if layers is not None:
        found[RESOLVED] = dict(layers)
    lab = os.environ.get(cores.LAB)
    if config.measure_network or lab:
        found["network"] = json.loads(lab or "{}") | network.measure(world)
    return found


def trackers_of(config: DictConfig, *, directory: Path, manifest: Mapping[str, Any]) -> list[Tracker]:
    """The chosen trackers of a run."""
    makes = [instantiate({**plain(node), "_partial_": True}) for node in config.tracker.values()]
    return [make(directory=directory, manifest=manifest) for make in makes]


def trainer_of(
    parts: Parts,
    config: DictConfig,
    *,
    sample: list[torch.Tensor],
    directory: Path,
    world: World,
    observers: Sequence[Observer],
    stop_requested: Callable[[], bool],
) -> Trainer:
    def wrap(model: nn.Module) -> nn.Module:
        memory_format.prepare(model, world.device, config.channels_last)  # a surgery may have replaced or resized layers
        # static shapes: the kernels of a step must not depend on earlier batches, or a resumed run would differ
        return torch.compile(model, dynamic=False) if config.compile else model

    return Trainer(
        method=parts.method,
        epochs=config.epochs,
        seed=config.seed,
        sample=sample,
        optimizer=parts.optimizer,
        reducer=parts.reducer,
        schedule=parts.schedule,
        precision=parts.precision,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        wrap=wrap,
        untimed_steps=config.untimed_steps,
        checkpoints=Checkpoints(directory=directory / "checkpoints", world=world),
        checkpoint_every=config.checkpoint_every,
        observers=list(observers),
        stop_requested=stop_requested,
    )
