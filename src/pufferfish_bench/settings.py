"""The settings of a run: their types, which of them make it the run it is, and which numbers make no sense."""

import hashlib
import json
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from pufferfish_bench.errors import InputError

log = logging.getLogger(__name__)

# Settings of a data set that say where it lies and how its batches are made ready, not what is in them.
DATA_PLACES = ("root", "fetch", "mirrors")
KIND = "kind"  # of a data set and of a model: told by which they are
# Settings of a group that its constructor is not given: others read them.
FOR_OTHERS = (KIND, "low_rank", "fully_low_rank", "sample", "warmup_rank")
DATA_CONDITIONS = ("cache", "workers", "prefetch", "tolerated_unreadable", "max_megapixels")

# Settings that say where and how often things are written, not what is trained: two runs that differ only here are the same.
PLACES = {
    "data_root": "", "download": False, "run_root": "", "run_dir": "", "device": "auto", "checkpoint_every": 1,
    "measure_network": False, "probe_steps": 0, "rank_timeout": 0.0, "rank_warning": 0.0, "global_batch": None,
}  # fmt: skip
# Settings that were added later, by the _target_ they belong to: a record without one was made as if it had this value.
LATER: dict[str, dict[str, Any]] = {
    "pufferfish_bench.optimizers.adam": {"weight_decay": 0.0, "decay_vectors": True},
    "pufferfish_bench.methods.eb_train.EBTrain": {"search_milestones": None},
    "pufferfish_bench.tasks.cifar10.cifar10": {"padding": "reflect", "normalisation": "paper"},
}
# Settings that are told by others: a profile by all that it chooses, the rest by the reducer, schedule or method that they are
# handed to.
TOLD_ELSEWHERE = ("profile", "measure_wait", "signum_learning_rate", "search_milestones")

MOST_EPOCHS = 10**6
LONGEST_WAIT = 7 * 24 * 3600  # seconds


@dataclass
class Settings:
    """The types of the settings, so that a word where a number belongs is refused; their values have their home in conf/."""

    model: Any = MISSING
    dataset: Any = MISSING
    method: Any = MISSING
    reducer: Any = MISSING
    profile: Any = MISSING
    precision: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    name: str = MISSING
    seed: int = MISSING
    workers: int = MISSING
    epochs: int = MISSING
    warmup_epochs: int = MISSING
    batch_size: int = MISSING
    channels_last: bool = MISSING
    compile: bool = MISSING
    deterministic: bool = MISSING
    signum_learning_rate: float = MISSING
    search_milestones: list[float] | None = MISSING
    clip_norm: float | None = MISSING
    untimed_steps: int = MISSING
    measure_wait: bool = MISSING
    measure_network: bool = MISSING
    probe_steps: int = MISSING
    device: str = MISSING
    data_root: str = MISSING
    download: bool = MISSING
    run_root: str = MISSING
    run_dir: str = MISSING
    checkpoint_every: int = MISSING
    rank_timeout: float = MISSING
    rank_warning: float = MISSING
    global_batch: int | None = MISSING


def config_dir() -> str:
    """conf/ inside the installed package, or at the top of the repository in an editable install."""
    inside = Path(__file__).parent / "conf"
    return str(inside if inside.is_dir() else Path(__file__).parents[2] / "conf")


def settings_of(config: DictConfig) -> dict[str, Any]:
    """What is trained, as plain data: every setting with its value, but for the places."""
    # places are left out, then put back empty: replacing run_dir would resolve it, and so ask for all of this again
    config = OmegaConf.masked_copy(config, [key for key in config if key != "hydra" and key not in PLACES])
    with open_dict(config):
        config.merge_with(PLACES)
    settings = OmegaConf.to_container(config, resolve=True)
    for key in (*DATA_PLACES, *DATA_CONDITIONS, KIND):
        settings["dataset"].pop(key, None)
    settings.get("model", {}).pop(KIND, None)
    return {key: value for key, value in settings.items() if key not in (*PLACES, *TOLD_ELSEWHERE)}


def with_later(settings: Any) -> Any:
    """The settings of a record, with the values that stand for what has become a setting since it was made."""
    if isinstance(settings, list):
        return [with_later(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    return LATER.get(settings.get("_target_"), {}) | {key: with_later(value) for key, value in settings.items()}


def without_later(settings: Any) -> Any:
    """Settings without what was added later, where it has the value of before: a run keeps its directory."""
    if isinstance(settings, list):
        return [without_later(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    later = LATER.get(settings.get("_target_"), {})
    return {key: without_later(value) for key, value in settings.items() if key not in later or later[key] != value}


def conditions(config: DictConfig) -> dict[str, Any]:
    """How batches are made ready: no part of a run's identity, and yet a condition of its times."""
    return {key: config.dataset[key] for key in DATA_CONDITIONS if key in config.dataset}


def together(workers: int, method: str, reducer: str) -> str:
    """What a run's name says of its reducer and its workers: nothing where nobody would ask."""
    return f"-{reducer}" * (reducer not in ("allreduce", method)) + f"-{workers}workers" * (workers > 1)


def fully_low_rank(config: DictConfig) -> dict[str, Any] | None:
    """What is factored in the net that is low-rank from the first layer: as in the hybrid, and nothing is spared at the front.

    None if the model says nothing about factoring.
    """
    if config.model.get("low_rank") is None:
        return None
    hybrid = OmegaConf.to_container(config.model.low_rank, resolve=True)
    own = OmegaConf.to_container(config.model.get("fully_low_rank") or OmegaConf.create(), resolve=True)
    return hybrid | own | {"first": None, "ranks": own.get("ranks", {}) | (hybrid.get("ranks") or {})}


def identity(config: DictConfig) -> str:
    """Eight letters that stand for the settings."""
    words = json.dumps(without_later(settings_of(config)), sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def warn_of_batch(config: DictConfig) -> None:
    """Say so if the batches of all workers together are not what the recipe's learning rate is made for."""
    workers, meant, batch = config.workers, config.global_batch, config.batch_size * config.workers
    if meant is None or batch == meant:
        return
    whole = meant % workers == 0
    fitting = f"batch_size={meant // workers}" if whole else f"a number of workers that divides {meant}"
    rate = "learning_rate" if "learning_rate" in config.schedule else "factor"
    log.warning(
        f"the global batch is {batch} (batch_size={config.batch_size} x {workers} worker{'s' * (workers > 1)}), but the learning "
        f"rate of this recipe is for {meant}: use {fitting}, or set schedule.{rate} for {batch} and global_batch={batch}"
    )


def check(config: DictConfig) -> None:
    """Refuse numbers that make no sense before anything slow begins."""
    for key in ("run_dir", "run_root"):
        if not str(config[key]).strip():
            raise InputError(f"{key}= is empty: name a directory, or leave {key} out")
    if not config.name.isprintable() or "/" in config.name or config.name.strip(" .") == "":
        raise InputError(f"name={config.name!r} cannot be the name of a directory: no slashes, and more than dots and blanks")
    for key in ("epochs", "batch_size", "checkpoint_every"):
        if config[key] < 1:
            raise InputError(f"{key}={config[key]} must be at least 1")
    if config.epochs >= MOST_EPOCHS:
        raise InputError(f"epochs={config.epochs} must be below {MOST_EPOCHS:,}")
    if config.workers != int(os.environ.get("WORLD_SIZE", "1")):
        raise InputError(f"workers={config.workers} is not to be set: it is the number of processes that torchrun starts")
    if not 0 < config.rank_timeout <= LONGEST_WAIT:
        raise InputError(f"rank_timeout={config.rank_timeout} must be above 0 and at most {LONGEST_WAIT} seconds")
    if not 0 <= config.rank_warning <= LONGEST_WAIT:
        raise InputError(f"rank_warning={config.rank_warning} must be from 0 (no warning) to {LONGEST_WAIT} seconds")
    for key in ("warmup_epochs", "untimed_steps", "probe_steps"):
        if config[key] < 0:
            raise InputError(f"{key}={config[key]} must not be negative")
    if config.clip_norm is not None and not 0 < config.clip_norm < math.inf:
        raise InputError(f"clip_norm={config.clip_norm} must be a number above 0, or null")
    if not 0 <= config.seed < 2**32:
        raise InputError(f"seed={config.seed} is outside 0..{2**32 - 1}")
