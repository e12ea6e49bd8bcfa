"""The batch of a run: per worker and of all workers, and the one that its learning rate was chosen for. Imports no torch."""

import logging
import math
from collections.abc import Callable, Sequence

from omegaconf import DictConfig

from pufferfish_bench.base.errors import InputError

log = logging.getLogger(__name__)

UNKNOWN = 128  # measured by pufferfish-advise if a recipe names no batch

# by schedule.scale: how the learning rate grows with the batch
RULES: dict[str, Callable[[float], float]] = {"none": lambda times: 1.0, "linear": lambda times: times, "sqrt": math.sqrt}


def per_worker(global_batch: int | None, workers: int) -> int:
    """The batch of each worker: an equal share of the global batch."""
    if global_batch is None:
        raise InputError("batch_size is not set: use batch_size= with the batch of each worker, or global_batch=")
    if not is_count(global_batch):
        raise InputError(f"global_batch={global_batch}: a whole number of at least 1 is expected")
    if global_batch % workers:
        raise InputError(
            f"global_batch={global_batch} cannot be divided among {workers} workers; a number of workers that divides it is "
            f"allowed, such as {nearest_divisor(global_batch, workers)}: start that many, or set batch_size= (of each worker)"
        )
    return global_batch // workers


def to_measure(global_batch: object, workers: Sequence[int]) -> int:
    """The batch of each worker that pufferfish-advise measures if batch_size is not set.

    For one number of workers that divides the global batch of the recipe, the equal share, as in a run; else all of it.
    """
    if global_batch is None:
        return UNKNOWN
    if not is_count(global_batch):
        raise InputError(f"schedule.batch={global_batch}: a whole number of at least 1 is expected, or null")
    whole = int(str(global_batch))
    return whole // workers[0] if len(workers) == 1 and whole % workers[0] == 0 else whole


def nearest_divisor(number: int, to: int) -> int:
    return min((size for size in range(1, number + 1) if number % size == 0), key=lambda size: abs(size - to))


def scaled_by(scale: str, chosen_for: int | None, batch_size: int, workers: int) -> float:
    """What the learning rate is multiplied by."""
    if scale not in RULES:
        raise InputError(f"schedule.scale={scale} is not known; allowed: {', '.join(RULES)}")
    if chosen_for is not None and not is_count(chosen_for):
        raise InputError(f"schedule.batch={chosen_for}: a whole number of at least 1 is expected, or null")
    if scale == "none":
        return 1.0
    if chosen_for is None:
        raise InputError(f"schedule.scale={scale} needs schedule.batch=, the global batch that the learning rate was chosen for")
    return RULES[scale](batch_size * workers / chosen_for)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check(config: DictConfig) -> None:
    """Refuse settings of the batch that contradict each other."""
    size, workers, accumulate = config.batch_size, config.workers, config.accumulate
    if size < 1:
        raise InputError(f"batch_size={size} must be at least 1")
    if not 1 <= accumulate <= size:
        raise InputError(f"accumulate={accumulate} must be from 1 to batch_size={size}: it divides the batch of each worker")
    if config.global_batch not in (None, config.schedule.batch, size * workers):
        raise InputError(
            f"global_batch={config.global_batch}, but batch_size={size} x {count(workers)} makes {size * workers}: set one of "
            "them (a recipe of the profiles cpu and smoke sets batch_size)"
        )
    wanted = scaled_by(config.schedule.scale, config.schedule.batch, size, workers)
    if config.schedule.scaled_by != wanted:
        raise InputError(f"schedule.scaled_by={config.schedule.scaled_by} cannot be set: it follows from schedule.scale")


def warn(config: DictConfig) -> None:
    """Warn if the global batch is not the one that the learning rate was chosen for."""
    workers, chosen_for, batch = config.workers, config.schedule.batch, config.batch_size * config.workers
    if chosen_for in (None, batch):
        return
    said = (
        f"the global batch is {batch} (batch_size={config.batch_size} x {count(workers)}), but the learning rate of this recipe "
        f"was chosen for {chosen_for}: "
    )
    if config.schedule.scale != "none":
        log.warning(f"{said}schedule.scale={config.schedule.scale} multiplies it by {config.schedule.scaled_by:g}")
        return
    whole = chosen_for % workers == 0
    fitting = f"batch_size={chosen_for // workers}" if whole else f"a number of workers that divides {chosen_for}"
    rate = "learning_rate" if "learning_rate" in config.schedule else "factor"
    log.warning(f"{said}use {fitting}, or schedule.scale=linear, or set schedule.{rate} for {batch} and schedule.batch={batch}")


def count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def record(config: DictConfig) -> dict[str, int | float | str | None]:
    """What a record says about the batch."""
    return {
        "global_batch": config.batch_size * config.workers,
        "batch_size": config.batch_size,
        "accumulate": config.accumulate,
        "learning_rate_chosen_for": config.schedule.batch,
        "scale": config.schedule.scale,
        "scaled_by": float(config.schedule.scaled_by),
    }
