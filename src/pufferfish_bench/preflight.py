"""Checks before anything is built or trained: settings that a part would not take, and parts that do not fit together."""

import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pufferfish_bench import typed
from pufferfish_bench.errors import InputError
from pufferfish_bench.settings import FOR_OTHERS

log = logging.getLogger(__name__)

ADAMS_RATE = 0.01  # above it, Adam hardly ever learns
LOOKS = 300  # at the learning rate, in each phase
# what the program itself gives to the constructor of each group
GIVEN = {
    "precision": (), "method": (), "schedule": ("clock",), "optimizer": ("model",), "reducer": ("world", "watch"),
    "dataset": ("world",),
}  # fmt: skip


def arguments_of(group: DictConfig) -> dict[str, Any]:
    """What a group says to its constructor."""
    settings = OmegaConf.to_container(group, resolve=True)
    return {key: value for key, value in settings.items() if key not in FOR_OTHERS}


def check_groups(config: DictConfig) -> None:
    """Refuse settings of the groups that their constructors would not take: other names, other types, out of range."""
    check_model(config)
    for group, given in GIVEN.items():
        typed.check(group, arguments_of(config[group]), given=given, complete=True)


def check_model(config: DictConfig) -> None:
    """Likewise, of the model alone, what is factored in it, and the sample by which it is counted."""
    from pufferfish_bench.low_rank import choose

    typed.check("model", arguments_of(config.model), complete=True)
    for key, complete in (("low_rank", True), ("fully_low_rank", False)):
        layers = OmegaConf.to_container(config.model, resolve=True).get(key)
        if layers is not None and not isinstance(layers, Mapping):
            raise InputError(f"model.{key}={typed.shown(layers)}: a mapping is expected, or null")
        if layers is not None:
            typed.check_arguments(f"model.{key}", layers, choose, given=("model",), complete=complete)
    if not OmegaConf.is_list(config.dataset.sample) or not config.dataset.sample:
        raise InputError(f"dataset.sample={typed.shown(config.dataset.sample)}: a list of the inputs of a model is expected")


def warn_of_rate(config: DictConfig, given: Collection[str]) -> None:
    """Say so if the user has `given` Adam as optimizer and kept a learning rate that is made for SGD."""
    chosen = [word.partition("=")[2] for word in given if word.startswith("optimizer=")]
    kept = not any(word.startswith("schedule.learning_rate=") for word in given)
    rate = config.schedule.get("learning_rate", 0.0)
    if chosen and chosen[-1] in ("adam", "adamw") and kept and rate > ADAMS_RATE:
        log.warning(
            f"schedule.learning_rate={rate} is made for SGD, and optimizer={chosen[-1]} wants about 0.001: "
            "give schedule.learning_rate=0.001"
        )


def check_rates(schedule: Callable[[Any], float], plan: Sequence[Any]) -> None:
    """Refuse a schedule that gives no learning rate somewhere in the plan, looking at some hundred epochs of each phase.

    No epoch is better than the first: the most that a rate can fall.
    """
    from pufferfish_bench.schedules import Clock

    for phase in plan:
        for key in set(phase.schedule) - set(typed.parameters(getattr(schedule, "func", schedule)) or phase.schedule):
            raise InputError(f"phase {phase.name} sets schedule.{key}, which this schedule does not have: use schedule=steps")
        start = phase.epochs.start if phase.restart else 0
        some = sorted({*phase.epochs[:: 1 + len(phase.epochs) // LOOKS], *phase.epochs[-1:]})
        for epoch, step in itertools.product(some, (0, 1)):
            clock = Clock(epoch - start, step, 2, phase.epochs.start - start, [0.0] * (epoch - start))
            rate = schedule(clock, **phase.schedule)
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
