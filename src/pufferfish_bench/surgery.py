"""A phase's surgery on all ranks at once: one operates, all are left with the same weights. What is cut, a method knows."""

import time
from typing import Any

from torch import Tensor, nn

from pufferfish_bench.checkpoints import Damaged, fingerprint
from pufferfish_bench.core import Operation, Phase, Run
from pufferfish_bench.errors import InputError


def operate(run: Run) -> dict[str, dict[str, Any]]:
    """Do the phase's surgery, time it and note it; return what the next optimizer may know.

    Rank 0 operates. The others take on the structure and are given the tensors: no two ranks need to find the same SVD.
    """
    phase, world = run.phase, run.world
    if phase.enter is None:
        run.operations.append(None)
        return {}
    world.synchronise()
    start = time.perf_counter()
    operation = world.share(on_cpu(phase.enter.operate(run)) if world.rank == 0 else None)
    if world.rank > 0:
        phase.enter.replay(run.model, operation.done)
    world.broadcast(run.model.state_dict().values())
    world.synchronise()
    seconds = world.share(time.perf_counter() - start)
    weights = agree(run, f"after the surgery of phase {phase.name}")
    noted = {"phase": phase.name, "epoch": run.epoch, "seconds": seconds, "weights": weights}
    run.operations.append(noted | operation.done)
    return operation.carried


def on_cpu(operation: Operation) -> Operation:
    """The same, for the way to other ranks: on theirs there is no such device as this one's."""
    carried = {
        name: {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}
        for name, state in operation.carried.items()
    }
    return Operation(operation.done, carried)


def carry(run: Run, carried: dict[str, dict[str, Any]]) -> None:
    """Let the fresh optimizer know what the surgery has carried over."""
    parameters = dict(run.model.named_parameters())
    for name, state in carried.items():
        here = parameters[name].device
        values = {key: value.to(here) if isinstance(value, Tensor) else value for key, value in state.items()}
        run.optimizer.state[parameters[name]].update(values)


def replay(run: Run, done: dict[str, Any] | None) -> None:
    """Give the model the structure that the phase's surgery gave it before; its tensors are loaded afterwards."""
    replay_phase(run.phase, run.model, done)
    run.operations.append(done)


def replay_phase(phase: Phase, model: nn.Module, done: Any) -> None:
    """Replay what a checkpoint says of a phase's surgery; Damaged if the model cannot have been changed so."""
    if phase.enter is None:
        if done is not None:
            raise Damaged(f"phase {phase.name} begins with an operation that it does not have")
        return
    if not isinstance(done, dict) or not isinstance(done.get("layers", {}), dict):
        raise Damaged(f"the operation of phase {phase.name} is missing or not of its kind")
    try:
        phase.enter.replay(model, done)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the operation of phase {phase.name} does not fit the model ({error})") from error


def agree(run: Run, moment: str) -> str:
    """The hash of the weights, which is the same on all ranks."""
    hashes = run.world.gather(fingerprint(run.model))
    others = [rank for rank, weights in enumerate(hashes) if weights != hashes[0]]
    if others:
        raise InputError(f"the weights of rank {', '.join(map(str, others))} are not those of rank 0 {moment}")
    return hashes[0]
