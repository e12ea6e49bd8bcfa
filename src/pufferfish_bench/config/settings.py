"""The settings of a run: their types, and which of them make up its identity. Their values are in conf/.

The class that declares a setting decides whether it is part of the identity. `Experiment` holds what is trained: two runs that
differ here are different runs, each with its own directory. `References`, `Runtime` and `Paths` are outside the identity. Inside
a config group, the section of a setting decides (see `Layout`).
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from pufferfish_bench.base.errors import InputError


@dataclass(frozen=True)
class Layout:
    """The sections of a config group."""

    constructor: str = ""  # holds `_target_` and its arguments; "": they are at the top of the group
    further: tuple[str, ...] = ()  # hold further arguments of the constructor
    facts: tuple[str, ...] = ()  # read by other parts of the program, not by the constructor
    common: tuple[str, ...] = ()  # facts that config.yaml sets for every choice
    outside: tuple[str, ...] = ()  # not part of a run's identity

    @property
    def sections(self) -> tuple[str, ...]:
        return (*filter(None, (self.constructor,)), *self.further, *self.facts, *self.common)


def layout(**sections: Any) -> dict[str, Layout]:
    """The metadata of a config group."""
    return {"layout": Layout(**sections)}


MODEL = layout(
    constructor="net", facts=("kind", "label", "from_data", "low_rank", "fully_low_rank"), outside=("kind", "label", "from_data")
)
DATASET = layout(further=("loader", "source"), facts=("input", "contents"), outside=("loader", "source", "input"))
SCHEDULE = layout(common=("batch", "scale", "scaled_by"), outside=("batch", "scale"))
PLAIN = layout()  # a constructor and its arguments, nothing else


@dataclass
class Experiment:
    """What is trained. These settings make up a run's identity."""

    model: Any = field(default=MISSING, metadata=MODEL)
    dataset: Any = field(default=MISSING, metadata=DATASET)
    method: Any = field(default=MISSING, metadata=PLAIN)
    reducer: Any = field(default=MISSING, metadata=PLAIN)
    precision: Any = field(default=MISSING, metadata=PLAIN)
    optimizer: Any = field(default=MISSING, metadata=PLAIN)
    schedule: Any = field(default=MISSING, metadata=SCHEDULE)
    name: str = MISSING
    seed: int = MISSING
    workers: int = MISSING
    epochs: int = MISSING
    warmup_epochs: int = MISSING
    batch_size: int = MISSING
    accumulate: int = MISSING
    channels_last: Any = MISSING  # auto, true or false
    compile: bool = MISSING
    deterministic: bool = MISSING
    tf32: bool = MISSING
    clip_norm: float | None = MISSING
    untimed_steps: int = MISSING


@dataclass
class References:
    """Values that other settings refer to. They enter a run's identity through the settings that use them."""

    profile: Any = MISSING
    signum_learning_rate: float = MISSING
    search_milestones: list[float] | None = MISSING
    measure_wait: bool = MISSING


@dataclass
class Runtime:
    """How a run is executed. Outside its identity."""

    device: str = MISSING
    checkpoint_every: int = MISSING
    measure_network: bool = MISSING
    probe_steps: int = MISSING
    rank_timeout: float = MISSING
    rank_warning: float = MISSING
    global_batch: int | None = MISSING
    tracker: Any = MISSING  # name -> constructor and its arguments


@dataclass
class Paths:
    """Where files are read and written. Outside a run's identity."""

    data_root: str = MISSING
    download: bool = MISSING
    run_root: str = MISSING
    run_dir: str = MISSING
    probe_file: str = MISSING


@dataclass
class Settings(Paths, Runtime, References, Experiment):
    """All settings of pufferfish-run. Hydra refuses a setting in conf/ that is not declared here, and values of a wrong type."""


# settings that are left out of the identity at the value at which they change nothing: records made before them stay valid
NOTHING = object()
NO_CHANGE = {"accumulate": 1, "schedule.scaled_by": 1, "tf32": False}
INSIDE = tuple(each.name for each in dataclasses.fields(Experiment))
SEVERAL = ("tracker",)  # groups of which several files can be chosen at once
TYPES = {each.name: getattr(each.type, "__name__", str(each.type)) for each in dataclasses.fields(Settings)}
LAYOUTS: dict[str, Layout] = {each.name: each.metadata["layout"] for each in dataclasses.fields(Settings) if each.metadata}


def config_dir() -> str:
    """conf/ inside the installed package, or at the top of the repository in an editable install."""
    inside = Path(__file__).parents[1] / "conf"
    return str(inside if inside.is_dir() else Path(__file__).parents[3] / "conf")


def plain(node: Any) -> Any:
    """A part of a config as plain data, with all references resolved."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def settings_of(config: DictConfig) -> dict[str, Any]:
    """The settings that make up a run's identity, as plain data. Others are resolved only if one of these refers to them."""
    settings = {}
    for key in INSIDE:
        if key not in config:
            continue
        node, outside = config[key], LAYOUTS[key].outside if key in LAYOUTS else ()
        own = {name: plain(node[name]) for name in node if name not in outside} if isinstance(node, DictConfig) else plain(node)
        if isinstance(own, dict):
            own = {name: value for name, value in own.items() if NO_CHANGE.get(f"{key}.{name}", NOTHING) != value}
        if NO_CHANGE.get(key, NOTHING) != own:
            settings[key] = own
    return settings


def arguments_of(group: str, node: DictConfig) -> dict[str, Any]:
    """The arguments of a group's constructor, including `_target_`."""
    own = LAYOUTS[group]
    found = {} if own.constructor else {str(key): plain(node[key]) for key in node if key not in own.sections}
    for section in (*filter(None, (own.constructor,)), *own.further):
        arguments = plain(node.get(section, {}))
        if not isinstance(arguments, dict):
            raise InputError(f"{group}.{section}={'null' if arguments is None else arguments}: a mapping is expected")
        found |= arguments
    return found


def place_of(group: str, node: DictConfig) -> dict[str, str]:
    """Where each argument of a group's constructor is set: {"cache": "dataset.loader.cache"}."""
    return {str(key): f"{group}.{section}.{key}" for section in LAYOUTS[group].further for key in node.get(section, ())}


def conditions(config: DictConfig) -> dict[str, Any]:
    """How batches are prepared: outside a run's identity, but it affects the measured times."""
    return plain(config.dataset.get("loader", {}))


def name_suffix(workers: int, method: str, reducer: str) -> str:
    """The part of a run's name for its reducer and number of workers, if they are not the defaults."""
    return f"-{reducer}" * (reducer not in ("allreduce", method)) + f"-{workers}workers" * (workers > 1)


def label_of(target: str, model_name: str | None = None) -> str:
    """The name of a model of the user's in the name of a run: what its library calls it, or the last word of its `_target_`."""
    return model_name.replace("/", "-") if isinstance(model_name, str) else target.rpartition(".")[2]


def fully_low_rank(config: DictConfig) -> dict[str, Any] | None:
    """Which layers are factorised in the fully low-rank network: as in the hybrid, but without full-rank layers at the front.

    None if the model has no `low_rank`.
    """
    if config.model.get("low_rank") is None:
        return None
    hybrid = plain(config.model.low_rank)
    own = plain(config.model.get("fully_low_rank")) or {}
    return hybrid | own | {"first": None, "ranks": own.get("ranks", {}) | (hybrid.get("ranks") or {})}


def identity(config: DictConfig) -> str:
    """Hash of the identity settings: eight hexadecimal digits."""
    return hashlib.sha256(json.dumps(settings_of(config), sort_keys=True).encode()).hexdigest()[:8]
