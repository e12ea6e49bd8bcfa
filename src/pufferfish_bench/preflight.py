"""Checks before anything is built or trained: settings that a part would not take, and parts that do not fit together."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pufferfish_bench import typed
from pufferfish_bench.errors import InputError
from pufferfish_bench.settings import FOR_OTHERS

# what the program itself gives to the constructor of each group
GIVEN = {
    "precision": (), "method": (), "schedule": ("clock",), "optimizer": ("model",), "reducer": ("world", "watch"), "model": (),
    "dataset": ("world",),
}  # fmt: skip


def arguments_of(group: DictConfig) -> dict[str, Any]:
    """What a group says to its constructor."""
    settings = OmegaConf.to_container(group, resolve=True)
    return {key: value for key, value in settings.items() if key not in FOR_OTHERS}


def check_groups(config: DictConfig) -> None:
    """Refuse settings of the groups that their constructors would not take: other names, other types, out of range."""
    from pufferfish_bench.low_rank import choose

    for key, complete in (("low_rank", True), ("fully_low_rank", False)):
        layers = OmegaConf.to_container(config.model, resolve=True).get(key)
        if layers is not None and not isinstance(layers, Mapping):
            raise InputError(f"model.{key}={typed.shown(layers)}: a mapping is expected, or null")
        if layers is not None:
            typed.check_arguments(f"model.{key}", layers, choose, given=("model",), complete=complete)
    for group, given in GIVEN.items():
        typed.check(group, arguments_of(config[group]), given=given, complete=True)
    if not OmegaConf.is_list(config.dataset.sample) or not config.dataset.sample:
        raise InputError(f"dataset.sample={typed.shown(config.dataset.sample)}: a list of the inputs of a model is expected")


def check_rates(schedule: Callable[[Any], float], plan: Sequence[Any]) -> None:
    """Refuse a schedule that gives no learning rate somewhere in the plan. No epoch gets better: the most that one can fall."""
    from pufferfish_bench.schedules import Clock

    for phase in plan:
        for key in set(phase.schedule) - set(typed.parameters(getattr(schedule, "func", schedule)) or phase.schedule):
            raise InputError(f"phase {phase.name} sets schedule.{key}, which this schedule does not have: use schedule=steps")
        start = phase.epochs.start if phase.restart else 0
        for epoch, step in itertools.product(phase.epochs, (0, 1)):
            rate = schedule(Clock(epoch - start, step, 2, phase.epochs.start - start, [0.0] * (epoch - start)), **phase.schedule)
            if not (math.isfinite(rate) and rate >= 0):
                raise InputError(
                    f"the schedule gives a learning rate of {rate:g} in epoch {epoch + 1}: it must not be negative or infinite"
                )


def check_reducer(reducer: Any, optimizer: Any, config: DictConfig, precision: Any) -> None:
    reducer.check(optimizer, config.clip_norm)
    if precision.scales and not reducer.takes_scaled:
        raise InputError("precision=amp scales the gradients on a GPU, which this reducer cannot follow; use precision=fp32")


def refuse_nonsense(group: str, trial: Callable[[], Any]) -> None:
    """Try a part that a config group has set up: a wrong value shows now and not after hours of training."""
    try:
        trial()
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"a setting of {group} is wrong: {error}") from error
