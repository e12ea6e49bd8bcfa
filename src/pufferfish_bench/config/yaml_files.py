"""Reads YAML files as plain data."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def read(path: Path) -> Any:
    """The content of a file as dicts, lists, strings and numbers; references are not resolved."""
    return OmegaConf.to_container(OmegaConf.load(path))
