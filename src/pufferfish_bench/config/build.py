"""Builds objects from settings, and converts Hydra's errors to InputError."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pufferfish_bench.base import cores
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import (
    batches,
    composition,  # noqa: F401  (Hydra composes with its checks)
    own_data,
)
from pufferfish_bench.config.checks import check_model
from pufferfish_bench.config.settings import (
    Settings,
    arguments_of,
    config_dir,
    fully_low_rank,
    identity,
    label_of,
    name_suffix,
    plain,
    settings_of,
)

RESOLVED = "layers"  # the entry of a record that holds the method's `layers` after `auto` was resolved


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """Errors of Hydra and OmegaConf become an InputError; an InputError or OSError that Hydra has wrapped is raised unwrapped."""
    theirs = (HydraException, OmegaConfBaseException)
    try:
        yield
    except theirs as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, InputError | OSError) and not isinstance(cause, theirs):  # Hydra's "not found" is both
                raise cause from cause.__cause__
            # OmegaConf raises the error of a resolver of ours in a context, not as a cause
            cause = cause.__cause__ or (cause.__context__ if isinstance(cause, OmegaConfBaseException) else None)
        raise InputError(in_one_line(error)) from error


def in_one_line(error: Exception) -> str:
    """The message of Hydra, or of the constructor that Hydra called, in one line."""
    if isinstance(error, InstantiationException) and (reason := error.__cause__):
        part = re.search(r"(?:full_key:|target) '?([\w.]+)", str(error))
        said = " ".join(str(reason).split("Exception raised from")[0].split()) or type(reason).__name__
        said = f"{type(reason).__name__}: {said}" if isinstance(reason, KeyError) else said  # whose message is only the key
        return f"{part[1] if part else 'a part'} cannot be built: {said}"
    return " ".join(str(error).split("\nConfig search path")[0].split())


@cache
def nowhere() -> tempfile.TemporaryDirectory:
    """A folder that is removed when the process ends. A launcher pickles what is registered as a resolver."""
    return tempfile.TemporaryDirectory()


def sweep_folder(root: DictConfig) -> str:
    """Where Hydra writes files of its own for a sweep: nowhere, unless its launcher starts jobs elsewhere, which read them."""
    basic = root.hydra.runtime.choices.get("hydra/launcher", "basic") == "basic"
    return nowhere().name if basic else "results/runs/.sweeps"


ConfigStore.instance().store(name="settings", node=Settings)
OmegaConf.register_new_resolver("identity", lambda *, _root_: identity(_root_), replace=True)
OmegaConf.register_new_resolver("per_worker", batches.per_worker, replace=True)
OmegaConf.register_new_resolver("scaled_by", batches.scaled_by, replace=True)
OmegaConf.register_new_resolver("name_suffix", name_suffix, replace=True)
OmegaConf.register_new_resolver("label_of", label_of, replace=True)
for resolver in own_data.RESOLVERS:
    OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
OmegaConf.register_new_resolver("cores_per_worker", cores.per_worker, replace=True)
OmegaConf.register_new_resolver("sweep_folder", lambda *, _root_: sweep_folder(_root_), replace=True)
OmegaConf.register_new_resolver("fully_low_rank", lambda *, _root_: OmegaConf.create(fully_low_rank(_root_)), replace=True)


def composed(overrides: Sequence[str]) -> DictConfig:
    """The config of pufferfish-run with these overrides."""
    with config_errors(), initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("config", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return config


def identify(overrides: Sequence[str], seeds: Sequence[int]) -> list[tuple[Path, dict[str, Any]]]:
    """For each seed: the directory of the run with these overrides, and the settings that make up its identity."""
    with config_errors():
        config = composed(overrides)
        found = []
        for config.seed in seeds:  # everything that depends on the seed is an interpolation
            found.append((Path(config.run_dir), settings_of(config)))
        return found


def described(overrides: Sequence[str]) -> dict[str, Any]:
    """What pufferfish-describe with these overrides describes, as arguments of paper.model_counts.describe."""
    with config_errors(), initialize_config_dir(config_dir(), version_base="1.3"):
        config = compose("describe", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        return description(config)


def description(config: DictConfig) -> dict[str, Any]:
    """The arguments of paper.model_counts.describe for a config of pufferfish-describe."""
    check_model(config)
    device = device_for_counting(config)
    return {
        "name": config.name,
        "build": lambda: built_on(device, lambda: build("model", config.model)),
        "sample": lambda: built_on(device, lambda: sample_of(config)),
        "hybrid": plain(config.model.get("low_rank")),
        "fully": fully_low_rank(config),
    }


def device_for_counting(config: DictConfig) -> str:
    """Where a model can be counted: on the meta device, which computes only shapes, or on the CPU if it needs values.

    An InputError if the model fails on the sample of the data set.
    """
    from pufferfish_bench.lowrank import counting

    def run_on(device: str) -> list[Any]:
        sample = built_on(device, lambda: sample_of(config))
        counting.forward(built_on(device, lambda: build("model", config.model)), *sample)
        return sample

    try:
        run_on("meta")
        return "meta"
    except InputError:
        raise
    except Exception:  # foreign models read values while they are built or called
        try_model(lambda: run_on("cpu"), sample_of(config))
        return "cpu"


def try_model(run: Callable[[], Any], sample: Sequence[Any]) -> Any:
    """Run a model; its own errors become an InputError that names the input."""
    try:
        return run()
    except (InputError, InstantiationException):
        raise
    except Exception as error:  # foreign code may raise anything
        shapes = " and ".join("x".join(map(str, tensor.shape)) for tensor in sample)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"the model fails on an input of {shapes} ({type(error).__name__}: {reason}): check the settings of model.net and of "
            "dataset (PUFFERFISH_TRACEBACK=1 shows where)"
        ) from error


def built_on(device: str, make: Callable[[], Any]) -> Any:
    """What `make` returns; its tensors are created on this device."""
    import torch

    with torch.device(device):
        return make()


def build(group: str, settings: DictConfig, **further: Any) -> Any:
    """Build the object that a config group describes: its constructor, called with its arguments and `further` ones."""
    found = instantiate(arguments_of(group, settings), **further)
    if group == "model" and not hasattr(found, "named_modules"):
        raise InputError(f"model.net._target_={settings.net._target_} returns {type(found).__name__}: an nn.Module is expected")
    return found


def build_method(settings: DictConfig, layers: Mapping[str, Any] | None) -> Any:
    """The method of a config; `layers` replaces its setting of that name, in which `auto` was resolved."""
    found = arguments_of("method", settings)
    return instantiate(found if layers is None else found | {"layers": dict(layers)})


def sample_of(config: DictConfig) -> list[Any]:
    """One input of the model, for counting: only shapes and types matter."""
    sample = instantiate(config.dataset.input.sample, _convert_="all")
    for number, value in enumerate(sample):
        if not hasattr(value, "to"):
            raise InputError(f"dataset.input.sample[{number}]={value}: a mapping with _target_ that builds a tensor is expected")
    return sample
