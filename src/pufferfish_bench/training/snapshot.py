"""The complete state of a run between two steps, so that another process can continue it exactly. Knows nothing of files.

A snapshot may come from an untrusted file: what does not fit the run is refused as Damaged before anything uses it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pufferfish_bench.base.errors import Damaged
from pufferfish_bench.core import Method, Run
from pufferfish_bench.training.optimizers import IMPLEMENTATION
from pufferfish_bench.training.precision import FullPrecision

MOMENTS = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # optimizer state that has the shape of its parameter


def take(run: Run, method: Method, precision: FullPrecision) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state that is the same on all ranks, and the state of this rank."""
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
        "best_weights": run.best_weights,
    } | {name: part.state_dict() for name, part in common_parts(run, method, precision).items()}
    local = {"random": random, "buffers": dict(run.model.named_buffers())} | {
        name: part.state_dict() for name, part in own_parts(run).items()
    }
    return shared, local


def check_progress(run: Run, saved: dict[str, Any]) -> None:
    """Refuse a snapshot whose phase, epoch or step is not in the plan. Reads only what is the same on all ranks."""
    fields = dict.fromkeys(("phase", "phase_start", "epoch", "step"), int) | {"learning_rate": float}
    for key, kind in (fields | {"history": list, "operations": list}).items():
        if not of_kind(saved.get(key), kind):
            raise Damaged(f"{key} is missing or has the wrong type")
    phase, epoch, step = saved["phase"], saved["epoch"], saved["step"]
    if not 0 <= phase < len(run.plan):
        raise Damaged(f"it is in phase {phase + 1} of {len(run.plan)}")
    end = run.plan[phase].epochs.stop
    if not (0 <= saved["phase_start"] <= epoch <= end and (phase or not saved["phase_start"])):
        raise Damaged(f"epoch {epoch} is not one of phase {run.plan[phase].name}, which ends with {end}")
    steps = run.task.steps(epoch) if epoch < run.epochs else 0
    if not 0 <= step <= steps:
        raise Damaged(f"step {step} is beyond the {steps} steps of its epoch")
    if len(saved["history"]) != epoch or not all(of_kind(value, float) for value in saved["history"]):
        raise Damaged(f"it has the metric of {len(saved['history'])} epochs, not of {epoch}")
    if len(saved["operations"]) != phase + 1:
        raise Damaged(f"it has {len(saved['operations'])} operations for {phase + 1} phases")


def restore(run: Run, method: Method, precision: FullPrecision, saved: dict[str, Any]) -> None:
    """Load a snapshot. The model already has its structure; optimizer and reducer are new.

    Damaged if anything does not fit: `run`, `method` and `precision` may then be partly loaded and must not be used.
    """
    check(run, method, precision, saved)
    run.epoch, run.step = saved["epoch"], saved["step"]
    run.phase_start, run.learning_rate, run.history = saved["phase_start"], saved["learning_rate"], saved["history"]
    run.best_weights = saved.get("best_weights", {})  # checkpoints of earlier versions have none
    try:
        for name, part in (common_parts(run, method, precision) | own_parts(run)).items():
            part.load_state_dict(saved[name])
        for name, buffer in run.model.named_buffers():
            buffer.copy_(saved["buffers"][name])
        torch.set_rng_state(saved["random"]["cpu"])
        if "cuda" in saved["random"] and run.world.device.type == "cuda":
            torch.cuda.set_rng_state(saved["random"]["cuda"], run.world.device)
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise Damaged(f"it cannot be restored ({error!r})") from error


def check(run: Run, method: Method, precision: FullPrecision, saved: dict[str, Any]) -> None:
    """Refuse a snapshot that differs in keys, types or shapes from that of a new run."""
    shared, local = take(run, method, precision)
    fresh = shared | local
    for name in ("model", "buffers", "method", "reducer", "tally", "watch", "task"):
        alike(fresh[name], saved.get(name), name)
    for name in ("random", "precision"):  # depends on the device
        alike(fresh[name], saved.get(name), name, common_keys_only=True)
    if not isinstance(saved["random"].get("cpu"), Tensor):
        raise Damaged("random.cpu is missing")
    if not all(of_kind(seconds, float) for seconds in saved["watch"]["seconds"].values()):
        raise Damaged("watch.seconds are not numbers")
    if not all(
        isinstance(sent, list | tuple) and len(sent) == 2 and of_kind(sent[0], str) and of_kind(sent[1], int)
        for sent in saved["tally"]["messages"]
    ):
        raise Damaged("tally.messages is not a list of collectives and their bytes")
    check_optimizer(run.optimizer, fresh["optimizer"], saved.get("optimizer"))
    in_last_phase = saved["phase"] == len(run.plan) - 1 and saved["epoch"] > saved["phase_start"]
    best = saved.get("best_weights", {})
    if best != {} or (run.task.results_of_best and in_last_phase):
        alike(fresh["model"], best, "best_weights")


def check_optimizer(optimizer: Optimizer, fresh: dict[str, Any], saved: Any) -> None:
    """An optimizer accepts any state and fails at its next step: check it before."""
    alike(fresh, saved, "optimizer")
    if len(fresh["param_groups"]) != len(saved["param_groups"]):
        raise Damaged(f"optimizer.param_groups: {len(saved['param_groups'])} instead of {len(fresh['param_groups'])}")
    for ours, theirs in zip(fresh["param_groups"], saved["param_groups"], strict=True):
        settings = {key: value for key, value in ours.items() if key not in IMPLEMENTATION}
        alike(settings, theirs, "optimizer.param_groups", common_keys_only=True)
        if theirs.get("params") != ours["params"]:
            raise Damaged("optimizer.param_groups: other parameters")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, state in saved["state"].items():
        if not (of_kind(place, int) and 0 <= place < len(parameters) and isinstance(state, dict)):
            raise Damaged(f"optimizer.state.{place}: there is no such parameter")
        for name in MOMENTS:
            if state.get(name) is not None:
                alike(parameters[place], state[name], f"optimizer.state.{place}.{name}")


def alike(fresh: Any, saved: Any, place: str, *, common_keys_only: bool = False) -> None:
    """Refuse `saved` if its type, keys or shapes differ from `fresh`. What is empty in a new run may be filled."""
    if fresh is None:
        return
    if isinstance(fresh, Tensor):
        if not isinstance(saved, Tensor) or saved.shape != fresh.shape:
            found = f"shape {tuple(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
            raise Damaged(f"{place}: {found} instead of shape {tuple(fresh.shape)}")
    elif isinstance(fresh, dict):
        if not isinstance(saved, dict):
            raise Damaged(f"{place} is missing or has the wrong type")
        if fresh and not common_keys_only and fresh.keys() != saved.keys():
            raise Damaged(f"{place}: other keys ({', '.join(sorted(map(str, fresh.keys() ^ saved.keys())))[:200]})")
        for key in fresh.keys() & saved.keys():
            alike(fresh[key], saved[key], f"{place}.{key}", common_keys_only=common_keys_only)
    elif not of_kind(saved, type(fresh)):
        raise Damaged(f"{place} is missing or has the wrong type")


def of_kind(value: Any, kind: type) -> bool:
    """Whether a value has a type. An integer is also a float, a bool is no number, and lists and tuples are the same."""
    if kind in (list, tuple):
        return isinstance(value, list | tuple)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def common_parts(run: Run, method: Method, precision: FullPrecision) -> dict[str, Any]:
    """Everything with state that is the same on all ranks, by its name in a checkpoint."""
    return {"model": run.model, "optimizer": run.optimizer, "method": method, "precision": precision}


def own_parts(run: Run) -> dict[str, Any]:
    """Everything with state that differs between ranks."""
    return {"reducer": run.reducer, "tally": run.tally, "watch": run.watch, "task": run.task}
