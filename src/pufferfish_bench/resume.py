"""Going on from a checkpoint: the newest one that fits the run, the same on all ranks."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from pufferfish_bench import snapshot, surgery
from pufferfish_bench.checkpoints import Checkpoints, Damaged
from pufferfish_bench.core import Method, Run
from pufferfish_bench.precision import FullPrecision


def resumed(
    run: Run, *, checkpoints: Checkpoints, method: Method, precision: FullPrecision,
    fresh: Callable[[nn.Module], Run], begin: Callable[[Run], None],
) -> Run:  # fmt: skip
    """A fresh run as its newest usable checkpoint has it, or as it is if there is none.

    A checkpoint that does not fit on one rank is set aside on all of them. `fresh` makes a run of a model, `begin` gives it its
    optimizer and its reducer.
    """
    spare = None
    while (saved := checkpoints.load()) is not None:
        parts = (method, precision, run.task)
        if spare is None:  # what a checkpoint that turns out not to fit may already have changed
            spare = copy.deepcopy((run.model, [part.state_dict() for part in parts]))
        complaints = run.world.gather(restore(run, saved, method=method, precision=precision, begin=begin))
        if not any(complaints):
            return run
        checkpoints.reject(saved, next(filter(None, complaints)))
        model, states = copy.deepcopy(spare)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        run = fresh(model)
    return run


def restore(
    run: Run, saved: dict[str, Any], *, method: Method, precision: FullPrecision, begin: Callable[[Run], None]
) -> str | None:
    """Bring a fresh run to where a checkpoint left it, or say why it cannot be brought there."""
    try:
        snapshot.check_progress(run, saved)
        for run.phase_index in range(saved["phase"] + 1):
            surgery.replay(run, saved["operations"][run.phase_index])
    except Damaged as damage:  # on all ranks alike, as all have been given the same: none of them waits in `begin`
        return str(damage)
    begin(run)
    try:
        snapshot.restore(run, method, precision, saved)
    except Damaged as damage:
        return str(damage)
    return None
