"""Config files of the user's own, in folders like conf/: from --config-dir and from PUFFERFISH_CONF. Does not import Hydra."""

import os
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config.settings import config_dir

VARIABLE = "PUFFERFISH_CONF"
CONFIG_DIR = ("--config-dir", "-cd")


def own_folders() -> list[Path]:
    """The folders that PUFFERFISH_CONF names, separated by a colon. An InputError if one does not exist."""
    found = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    check_folders(found, VARIABLE)
    return found


def check_folders(folders: Sequence[Path], given_by: str) -> None:
    """Refuse a folder that does not exist, and a file that has the name of one of this package's and would not be read."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(
                f"{given_by}={folder}: there is no such folder; it should have folders like conf/: model, method, ..."
            )
        for path in sorted(folder.rglob("*.yaml")):
            if (Path(config_dir()) / path.relative_to(folder)).is_file():
                raise InputError(f"{path} has the name of a file of this package, which would be used instead: rename it")


def config_dirs(words: Sequence[str]) -> list[str]:
    """The folders that --config-dir names."""
    names = [words[place + 1] for place, word in enumerate(words[:-1]) if word in CONFIG_DIR]
    return names + [word.partition("=")[2] for word in words if word.split("=")[0] in CONFIG_DIR and "=" in word]
