"""Runs a phase's surgery: rank 0 operates, or all ranks together, and all ranks end up with the same weights."""

import hashlib
import logging
import time
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.base.errors import Damaged, InputError
from pufferfish_bench.core import Operation, Phase, Run
from pufferfish_bench.distributed.world import World
from pufferfish_bench.records.files import with_other_weights

log = logging.getLogger(__name__)


def operate(run: Run) -> dict[str, dict[str, Any]]:
    """Do the phase's surgery, time it and add it to `run.operations`; return the state for the next optimizer.

    Unless the surgery is collective, rank 0 operates and the others replay the structure. In both cases all ranks receive the
    tensors of rank 0, so that they need not compute equal bits.
    """
    phase, world = run.phase, run.world
    if phase.surgery is None:
        run.operations.append(None)
        return {}
    world.synchronise()
    start = time.perf_counter()
    collective = phase.surgery.collective
    own = on_host(world, phase.surgery.operate(run)) if collective or world.rank == 0 else None
    operation: Operation = world.broadcast_object(own)
    if own is None:
        phase.surgery.replay(run.model, operation.details)
    world.broadcast(run.model.state_dict().values())
    world.synchronise()
    seconds = world.broadcast_object(time.perf_counter() - start)
    weights = require_equal_weights(run, f"after the surgery of phase {phase.name}")
    run.operations.append(
        {"phase": phase.name, "epoch": run.epoch, "seconds": seconds, "weights": weights, **operation.details}
    )  # fmt: skip
    return operation.optimizer_state


def on_host(world: World, operation: Operation) -> Operation:
    """The same operation with its tensors on the CPU, to be sent to ranks with other devices."""
    state = {
        name: {key: world.on_host(value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for name, values in operation.optimizer_state.items()
    }
    return Operation(operation.details, state)


def load_optimizer_state(run: Run, state: dict[str, dict[str, Any]]) -> None:
    """Give the new optimizer the state that the surgery computed, by parameter name."""
    parameters = dict(run.model.named_parameters())
    for name, values in state.items():
        run.optimizer.state[parameters[name]].update({key: like(parameters[name], value) for key, value in values.items()})


def like(parameter: nn.Parameter, value: Any) -> Any:
    """A value on the parameter's device; with the parameter's strides, which fused optimizers need, if it has its shape."""
    if not isinstance(value, Tensor):
        return value
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter, requires_grad=False).copy_(value)


def replay(run: Run, details: dict[str, Any] | None) -> None:
    """Give the model the structure that the phase's surgery gave it before; its tensors are loaded afterwards."""
    replay_phase(run.phase, run.model, details)
    run.operations.append(details)


def replay_phase(phase: Phase, model: nn.Module, details: Any) -> None:
    """Replay the surgery that a checkpoint describes; Damaged if the description does not fit the phase or the model."""
    if phase.surgery is None:
        if details is not None:
            raise Damaged(f"phase {phase.name} begins with an operation, but in the plan it has none")
        return
    if not isinstance(details, dict) or not isinstance(details.get("layers", {}), dict):
        raise Damaged(f"the surgery of phase {phase.name} is missing or has the wrong type")
    try:
        phase.surgery.replay(model, details)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the surgery of phase {phase.name} does not fit the model ({error})") from error


def require_equal_weights(run: Run, moment: str) -> str:
    """The hash of the weights; an InputError if it is not the same on all ranks."""
    weights, others = compare_weights(run)
    if others:
        raise InputError(f"the weights of rank {', '.join(map(str, others))} are not those of rank 0 {moment}")
    return weights


def compare_weights(run: Run) -> tuple[str, list[int]]:
    """The hash of the weights of rank 0, and the ranks with other weights."""
    hashes: list[str] = run.world.gather(fingerprint(run.model))
    return hashes[0], [rank for rank, weights in enumerate(hashes) if weights != hashes[0]]


def note_unequal_weights(run: Run) -> None:
    """Keep in the run which ranks ended with other weights than rank 0, and warn of them.

    No error, which would throw away the finished run: GPUs of different kinds round differently.
    """
    _, run.unequal_ranks = compare_weights(run)
    if run.unequal_ranks and run.world.rank == 0:
        log.warning(with_other_weights(run.unequal_ranks))


def fingerprint(model: nn.Module) -> str:
    """A hash of all tensors of a model: equal on all ranks, equal after a resume."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(contents(tensor.detach()))
    return digest.hexdigest()[:16]


def contents(tensor: Tensor) -> Any:
    """The bytes of a tensor; of one on the meta device, which has none, its type and shape."""
    if tensor.is_meta:
        return f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()
