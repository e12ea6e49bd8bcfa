"""Resumes a run from its newest checkpoint that fits, the same one on all ranks."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from pufferfish_bench.base.errors import Damaged
from pufferfish_bench.core import Method, Run, Task
from pufferfish_bench.distributed import surgery
from pufferfish_bench.training import snapshot
from pufferfish_bench.training.checkpoints import Checkpoints
from pufferfish_bench.training.precision import FullPrecision


def resumed(
    run: Run, *, checkpoints: Checkpoints, method: Method, precision: FullPrecision,
    new_run: Callable[[nn.Module], Run], prepare_phase: Callable[[Run], None],
) -> Run:  # fmt: skip
    """The run restored from its newest usable checkpoint, or the run as given if there is none.

    A checkpoint that does not fit on one rank is set aside on all of them. `new_run` makes a run of a model, `prepare_phase`
    creates its optimizer and its reducer.
    """
    backup = None
    while (saved := checkpoints.load()) is not None:
        parts: tuple[Method | FullPrecision | Task, ...] = (method, precision, run.task)
        if backup is None:  # of what a checkpoint may change before it turns out not to fit
            backup = copy.deepcopy((run.model, [part.state_dict() for part in parts]))
        errors = run.world.gather(restore(run, saved, method=method, precision=precision, prepare_phase=prepare_phase))
        if not any(errors):
            return run
        checkpoints.reject(saved, next(filter(None, errors)))
        model, states = copy.deepcopy(backup)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        run = new_run(model)
    return run


def restore(
    run: Run, saved: dict[str, Any], *, method: Method, precision: FullPrecision, prepare_phase: Callable[[Run], None]
) -> str | None:
    """Bring a new run to where the checkpoint was taken; return why the checkpoint does not fit, or None if it does."""
    try:
        snapshot.check_progress(run, saved)
        for run.phase_index in range(saved["phase"] + 1):
            surgery.replay(run, saved["operations"][run.phase_index])
    except Damaged as damage:  # the same on all ranks, so that no rank waits for the others in `prepare_phase`
        return str(damage)
    prepare_phase(run)
    try:
        snapshot.restore(run, method, precision, saved)
    except Damaged as damage:
        return str(damage)
    return None
