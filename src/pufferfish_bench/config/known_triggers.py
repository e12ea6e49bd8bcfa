"""The triggers of conf/method/trigger as functions, with the settings of a recorded run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from pufferfish_bench.config import trusted
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.training.triggers import Trigger


def known_triggers(method: Mapping[str, Any]) -> dict[str, Trigger]:
    """Every trigger, by a label with its settings; references to settings of `method` are resolved from this record."""
    trusted.refuse_references("method", method)
    found = {}
    for path in sorted((Path(config_dir()) / "method" / "trigger").glob("*.yaml")):
        config = OmegaConf.create({"method": method, "trigger": OmegaConf.load(path)})
        if path.stem == "fixed_epoch" and "warmup_epochs" not in config.method:
            continue  # a search phase has no fixed end
        settings = ", ".join(f"{key} {value}" for key, value in config.trigger.items() if not key.startswith("_"))
        found[f"{path.stem} ({settings})"] = instantiate(config.trigger)
    return found
