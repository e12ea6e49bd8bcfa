"""Hydra's parsers with a memory: tests compose thousands of configs from the same few files and interpolations.

Composing is most of the time of such a test, and parsing is most of composing.
"""

import copy
import functools
from typing import IO, Any

import omegaconf
import yaml
from omegaconf import _utils, base, grammar_parser
from omegaconf._utils import get_yaml_loader


@functools.cache
def parsed_yaml(text: str, loader: type) -> Any:
    return yaml.load(text, Loader=loader)


class RememberingYaml:
    """Takes the place of the module yaml inside OmegaConf, which makes a new loader class, always the same, for each file."""

    loader = get_yaml_loader()

    def load(self, stream: IO[str], **_: Any) -> Any:
        return copy.deepcopy(parsed_yaml(stream.read(), self.loader))

    def __getattr__(self, name: str) -> Any:
        return getattr(yaml, name)


def remember_parsed_text() -> None:
    """Parse each YAML file and each interpolation once in this process."""
    omegaconf.omegaconf.yaml = RememberingYaml()
    base.parse = _utils.parse = functools.cache(grammar_parser.parse)
