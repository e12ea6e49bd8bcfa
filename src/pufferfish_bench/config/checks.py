"""Checks before training: numbers out of range, settings that a part does not accept, parts that do not work together."""

import itertools
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.extras import is_installed, missing_package
from pufferfish_bench.config import batches, signatures
from pufferfish_bench.config.settings import arguments_of, place_of, plain

log = logging.getLogger(__name__)

ADAMS_RATE = 0.01  # Adam rarely learns with a higher one
SAMPLES = 300  # epochs of each phase at which the learning rate is checked
MOST_EPOCHS = 10**6
LONGEST_WAIT = 7 * 24 * 3600  # seconds
# arguments that the program itself passes to the constructor of each group
GIVEN = {
    "precision": (), "method": (), "schedule": ("clock",), "optimizer": ("model",), "reducer": ("world", "watch"),
    "dataset": ("world",),
}  # fmt: skip


def check_numbers(config: DictConfig) -> None:
    """Refuse values out of range before anything slow starts."""
    for key in ("run_dir", "run_root"):
        if not str(config[key]).strip():
            raise InputError(f"{key}= is empty: name a directory, or leave {key} out")
    if not config.name.isprintable() or "/" in config.name or config.name.strip(" .") == "":
        raise InputError(
            f"name={config.name!r} cannot be the name of a directory: use printable characters, no slash, not only dots"
        )
    for key in ("epochs", "checkpoint_every"):
        if config[key] < 1:
            raise InputError(f"{key}={config[key]} must be at least 1")
    if config.epochs >= MOST_EPOCHS:
        raise InputError(f"epochs={config.epochs} must be below {MOST_EPOCHS:,}")
    if config.workers != int(os.environ.get("WORLD_SIZE", "1")):
        raise InputError(
            f"workers={config.workers} cannot be set: use torchrun to start this many processes, and leave workers out"
        )
    if not 0 < config.rank_timeout <= LONGEST_WAIT:
        raise InputError(f"rank_timeout={config.rank_timeout} must be above 0 and at most {LONGEST_WAIT} seconds")
    if not 0 <= config.rank_warning <= LONGEST_WAIT:
        raise InputError(f"rank_warning={config.rank_warning} must be from 0 (no warnings) to {LONGEST_WAIT} seconds")
    for key in ("warmup_epochs", "untimed_steps", "probe_steps"):
        if config[key] < 0:
            raise InputError(f"{key}={config[key]} must be at least 0")
    if config.probe_file and not config.probe_steps:
        raise InputError(f"probe_file={config.probe_file} needs probe_steps above 0")
    if not isinstance(config.channels_last, bool) and config.channels_last != "auto":
        raise InputError(f"channels_last={signatures.shown(config.channels_last)}: auto, true or false is expected")
    batches.check(config)
    if config.clip_norm is not None and not 0 < config.clip_norm < math.inf:
        raise InputError(f"clip_norm={config.clip_norm} must be a number above 0, or null")
    if not 0 <= config.seed < 2**32:
        raise InputError(f"seed={config.seed} must be from 0 to {2**32 - 1}")


def check_groups(config: DictConfig, groups: Collection[str] = tuple(GIVEN)) -> None:
    """Refuse settings that the constructors of the groups do not accept: unknown names, wrong types, values out of range."""
    check_model(config)
    for group in groups:
        node = config[group]
        signatures.check(group, arguments_of(group, node), given=GIVEN[group], complete=True, places=place_of(group, node))


def check_trackers(config: DictConfig) -> None:
    """Refuse settings that a chosen tracker does not accept, and one whose package is not installed."""
    for name, node in config.tracker.items():
        own = plain(node)
        signatures.check(f"tracker.{name}", own, given=("directory", "manifest"))
        package = getattr(signatures.located(own[signatures.TARGET], f"tracker.{name}"), "package", "")
        if package and not is_installed(package):
            raise missing_package(package, f"tracker={name}")


def check_model(config: DictConfig) -> None:
    """The same checks for the model, the layers to factorise, and the sample used to count its parameters."""
    from pufferfish_bench.lowrank.auto import explicit

    signatures.check("model.net", arguments_of("model", config.model), complete=True)
    for key, complete in (("low_rank", True), ("fully_low_rank", False)):
        layers = plain(config.model.get(key))
        if layers is not None and not isinstance(layers, Mapping):
            raise InputError(f"model.{key}={signatures.shown(layers)}: a mapping is expected, or null")
        if layers is not None:
            signatures.check_arguments(f"model.{key}", layers, explicit, given=("model", "sample"), complete=complete)
    facts = config.dataset.get("input")
    sample = facts.get("sample") if isinstance(facts, DictConfig) else None
    if not OmegaConf.is_list(sample) or not sample:
        raise InputError(f"dataset.input.sample={signatures.shown(sample)}: a list of sample inputs for the model is expected")


def warn_of_rate(config: DictConfig, given: Collection[str]) -> None:
    """Warn if the user chose Adam on the command line (`given`) and kept a learning rate meant for SGD."""
    chosen = [word.partition("=")[2] for word in given if word.startswith("optimizer=")]
    kept = not any(word.startswith("schedule.learning_rate=") for word in given)
    rate = config.schedule.get("learning_rate", 0.0)
    if chosen and chosen[-1] in ("adam", "adamw") and kept and rate > ADAMS_RATE:
        log.warning(
            f"schedule.learning_rate={rate} is meant for SGD, but optimizer={chosen[-1]} needs about 0.001: "
            "use schedule.learning_rate=0.001"
        )


def check_plan(plan: Sequence[Any]) -> None:
    """Raise an InputError unless the phases follow each other without gaps, from epoch 0 on."""
    epoch = 0
    for phase in plan:
        if phase.epochs.start != epoch or phase.epochs.stop < epoch:
            raise InputError(
                f"phase {phase.name} of the method has epochs {phase.epochs.start} to {phase.epochs.stop}, but must begin with "
                f"epoch {epoch}: check the settings of the method"
            )
        epoch = phase.epochs.stop


def check_rates(schedule: Callable[[Any], float], plan: Sequence[Any]) -> None:
    """Refuse a schedule with a negative or infinite learning rate, at up to a few hundred epochs of each phase.

    The history passed to it never improves, so that a rate that depends on the metric falls as far as it can.
    """
    from pufferfish_bench.training.schedules import Clock

    for phase in plan:
        for key in set(phase.schedule) - set(signatures.parameters(getattr(schedule, "func", schedule)) or phase.schedule):
            raise InputError(f"phase {phase.name} sets schedule.{key}, which this schedule does not have: use schedule=steps")
        start = phase.epochs.start if phase.restart else 0
        some = sorted({*phase.epochs[:: 1 + len(phase.epochs) // SAMPLES], *phase.epochs[-1:]})
        for epoch, step in itertools.product(some, (0, 1)):
            clock = Clock(epoch - start, step, 2, phase.epochs.start - start, [0.0] * (epoch - start))
            rate = schedule(clock, **phase.schedule)
            if not (math.isfinite(rate) and rate >= 0):
                raise InputError(
                    f"the schedule gives a learning rate of {rate:g} in epoch {epoch + 1}: it must be finite and at least 0; "
                    "change the settings of schedule"
                )


def check_reducer(reducer: Any, optimizer: Any, clip_norm: float | None, precision: Any) -> None:
    reducer.check(optimizer, clip_norm)
    if precision.scales and not reducer.supports_loss_scaling:
        raise InputError("precision=amp scales the loss on a GPU, which this reducer does not support; use precision=fp32")


def refuse_nonsense(group: str, trial: Callable[[], Any]) -> None:
    """Try a part that was built from a config group, to find a wrong value now and not after hours of training."""
    try:
        trial()
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"a setting of {group} is wrong: {error} (PUFFERFISH_TRACEBACK=1 shows where)") from error
