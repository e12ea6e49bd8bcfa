"""All that a run is between two steps, so that another process goes on as if nothing had happened. Knows nothing of files."""

from typing import Any

import torch

from pufferfish_bench.core import Method, Run
from pufferfish_bench.precision import FullPrecision


def take(run: Run, method: Method, precision: FullPrecision) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the same on all ranks, and what is this rank's own."""
    random = {"cpu": torch.get_rng_state()}
    if run.world.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(run.world.device)
    shared = {
        "phase": run.phase_index,
        "phase_start": run.phase_start,
        "epoch": run.epoch,
        "step": run.step,
        "learning_rate": run.learning_rate,
        "history": run.history,
        "operations": run.operations,
    } | {name: part.state_dict() for name, part in common_parts(run, method, precision).items()}
    local = {"random": random, "buffers": dict(run.model.named_buffers())} | {
        name: part.state_dict() for name, part in own_parts(run).items()
    }
    return shared, local


def restore(run: Run, method: Method, precision: FullPrecision, saved: dict[str, Any]) -> None:
    """Put back both halves of a snapshot; the model already has its structure, and the loop knows the phase, epoch and step."""
    run.phase_start, run.learning_rate, run.history = saved["phase_start"], saved["learning_rate"], saved["history"]
    for name, part in (common_parts(run, method, precision) | own_parts(run)).items():
        part.load_state_dict(saved[name])
    for name, buffer in run.model.named_buffers():
        buffer.copy_(saved["buffers"][name])
    torch.set_rng_state(saved["random"]["cpu"])
    if "cuda" in saved["random"] and run.world.device.type == "cuda":
        torch.cuda.set_rng_state(saved["random"]["cuda"], run.world.device)


def common_parts(run: Run, method: Method, precision: FullPrecision) -> dict[str, Any]:
    """All that changes while training and is the same on all ranks, by the name it has in a checkpoint."""
    return {"model": run.model, "optimizer": run.optimizer, "method": method, "precision": precision}


def own_parts(run: Run) -> dict[str, Any]:
    """All that changes while training and is each rank's own."""
    return {"reducer": run.reducer, "tally": run.tally, "watch": run.watch, "task": run.task}
