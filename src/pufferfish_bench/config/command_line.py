"""Turns the command line into configs."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.config.build import config_errors
from pufferfish_bench.config.own_configs import CONFIG_DIR, check_distinct, check_folders, config_dirs, own_folders
from pufferfish_bench.config.settings import TYPES, config_dir

COMPLETION, SHELLS = ("install", "uninstall", "query"), ("bash", "zsh", "fish")
ALL_SETTINGS = "--help-settings"  # Hydra's --cfg job
OTHER_CONFIGS = ("--config-name", "-cn", "--config-path", "-cp")


@dataclass(frozen=True)
class Job:
    """One config to use; a sweep has several."""

    config: DictConfig
    overrides: list[str]
    profile: str | None
    choices: dict[str, str]  # of all groups
    number: int = 0
    of_sweep: bool = False
    refusal: str | None = None  # why this config of a sweep could not be composed


def for_each_config(config_name: str, use: Callable[[Job], None]) -> None:
    """Call `use` with every config that the command line asks for; Hydra itself answers --help and --cfg.

    `use` runs inside Hydra's launcher, so that launchers that start other processes work too.
    """
    check_words(sys.argv[1:])
    if ALL_SETTINGS in sys.argv:
        sys.argv[sys.argv.index(ALL_SETTINGS) : sys.argv.index(ALL_SETTINGS) + 1] = ["--cfg", "job"]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise errors instead of printing them

    here = os.getpid()

    def task(config: DictConfig) -> None:
        try:
            use(job_of(config))
        except Exception as error:
            if os.getpid() != here:
                raise  # the process of the launcher reports it
            raise PastHydra(error) from None

    with config_errors():
        try:
            hydra.main(config_path=config_dir(), config_name=config_name, version_base="1.3")(task)()
        except PastHydra as passed:
            raise passed.error from passed.error.__cause__


class PastHydra(BaseException):
    """Carries an error through Hydra, which would print its own message for an Exception."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


def job_of(config: DictConfig) -> Job:
    """The config that Hydra has just composed, with what Hydra knows about it."""
    hydra_config = HydraConfig.get()
    swept = hydra_config.mode == RunMode.MULTIRUN
    return Job(
        config=config,
        overrides=list(hydra_config.overrides.task),
        choices={str(group): str(choice) for group, choice in hydra_config.runtime.choices.items()},
        profile=hydra_config.runtime.choices.get("profile"),
        number=hydra_config.job.num if swept else 0,
        of_sweep=swept,
        refusal=config.get("refusal"),
    )


def check_words(words: list[str]) -> None:
    """Refuse arguments that Hydra would misunderstand, or answer with a traceback or with its own list of options."""
    if "--shell-completion" in words and not any(completes(word) for word in words):
        raise InputError(
            "--shell-completion needs an action: install=bash, install=zsh or install=fish, or uninstall= with one of them"
        )
    if any(word.split("=")[0] in OTHER_CONFIGS for word in words):
        raise InputError("the config of this command cannot be replaced; add your own files with --config-dir DIR")
    known = [*get_args_parser()._option_string_actions, ALL_SETTINGS]
    for word in words:
        if word.startswith("-") and word.split("=")[0] not in known:
            refuse_option(word, known)
    given = [Path(name) for name in config_dirs(words)]
    check_folders(given, CONFIG_DIR[0])
    check_distinct([*given, *own_folders()])


def completes(word: str) -> bool:
    """Whether a word is an action of --shell-completion."""
    action, _, shell = word.partition("=")
    return action in COMPLETION and shell in SHELLS


def refuse_option(word: str, known: list[str]) -> None:
    """Refuse an unknown option; a setting with dashes is named without them."""
    option, equals, value = word.partition("=")
    setting = option.lstrip("-").replace("-", "_")
    if equals or setting in TYPES:
        raise InputError(f"there is no option {option}; a setting has no dashes in front: {setting}={value or 'VALUE'}")
    shown = [name for name in known if name.startswith("--") and name not in OTHER_CONFIGS]
    raise not_known(f"option {option}", option, shown)
