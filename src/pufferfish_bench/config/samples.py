"""What the model of a recorded run takes as input. A record does not say: its data set's file in conf/ does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.config import trusted, yaml_files
from pufferfish_bench.config.build import sample_of
from pufferfish_bench.config.own_configs import own_folders
from pufferfish_bench.config.settings import config_dir


def recorded_input(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `input` section of the file for a data set whose `_target_` the record names, or None. Needs no torch.

    The files are those in conf/dataset and in the folders of PUFFERFISH_CONF.
    """
    target = settings["dataset"].get("_target_")
    for folder in (Path(config_dir()), *own_folders()):
        for path in sorted((folder / "dataset").glob("*.yaml")):
            content = yaml_files.read(path)
            if "input" in content and content.get("_target_") == target:
                return content["input"]
    return None


def recorded_sample(settings: Mapping[str, Any]) -> list[Any]:
    """One input of the model of a record: tensors, of which only shapes and types matter."""
    found = recorded_input(settings)
    if found is None:
        raise InputError(f"no file in conf/dataset describes the input of {printable(str(settings['dataset'].get('_target_')))}")
    for group in ("dataset", "model"):
        trusted.refuse_references(group, settings[group])  # the sample refers to settings of the record, which must be values
    return sample_of(OmegaConf.create({"dataset": {**settings["dataset"], "input": found}, "model": settings["model"]}))
