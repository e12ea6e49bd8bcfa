"""Config files of the user's own, in folders like conf/: from --config-dir and from PUFFERFISH_CONF. Does not import Hydra."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from yaml import YAMLError

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import yaml_files
from pufferfish_bench.config.settings import config_dir

VARIABLE = "PUFFERFISH_CONF"
CONFIG_DIR = ("--config-dir", "-cd")


def own_folders() -> list[Path]:
    """The folders that PUFFERFISH_CONF names, separated by a colon. An InputError if one does not exist."""
    found = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    check_folders(found, VARIABLE)
    check_distinct(found)
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


def invalid_yaml(error: YAMLError, folders: Iterable[Path]) -> str:
    """A sentence for YAML that Hydra cannot read. The error does not always name the file: it is in one of the folders."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        try:
            yaml_files.read(path)
        except YAMLError as found:
            if getattr(found, "problem", "") == getattr(error, "problem", ""):
                return f"{path} is not valid YAML: {' '.join(str(found).split())}"
        except (OSError, ValueError):
            continue
    return f"a config file is not valid YAML: {' '.join(str(error).split())}"


def check_distinct(folders: Sequence[Path]) -> None:
    """Refuse two files of the same name in two folders: only one of them would be read."""
    seen: dict[Path, Path] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for path in sorted(folder.rglob("*.yaml")):
            other = seen.setdefault(path.relative_to(folder), path)
            if other != path:
                raise InputError(f"{path} has the name of {other}, and only one of them would be used: rename it")
