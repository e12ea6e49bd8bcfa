"""Hydra's composition with checks: a recipe sets only what the chosen parts have, and an unknown setting is refused."""

import copy
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal import hydra as hydra_internals
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import YAMLError

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import did_you_mean, not_known
from pufferfish_bench.config.choices import choices as choices_in
from pufferfish_bench.config.own_configs import VARIABLE, invalid_yaml, own_folders
from pufferfish_bench.config.recipes import adds_argument, check_complete, check_parts, drop_undeclared, pass_sizes, value_of
from pufferfish_bench.config.settings import SEVERAL, TYPES
from pufferfish_bench.config.suggestions import keys_of, unknown, unknown_group, unreadable

CONFIGS = ("config", "describe", "advise")  # of this package: Hydra also composes configs of its own
EXPECTED = {
    "int": "an integer",
    "int | None": "an integer or null",
    "float": "a number",
    "float | None": "a number or null",
    "list[float] | None": "a list of numbers or null",
    "bool": "true or false",
    "str": "a string",
}
HYDRA = {field.name for field in dataclasses.fields(HydraConf)}


class Loader(ConfigLoaderImpl):
    """Hydra's loader, with our checks after it has composed a config."""

    refused: InputError | None = None  # Hydra composes twice, and ignores the error of the first time

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *arguments: Any, **further: Any
    ) -> DictConfig:
        if config_name not in CONFIGS:
            return super().load_configuration(config_name, overrides, run_mode, *arguments, **further)
        if self.refused and run_mode == RunMode.RUN:
            raise self.refused
        try:
            return self.checked_configuration(config_name, overrides, run_mode, *arguments, **further)
        except InputError as error:
            self.refused = error if run_mode == RunMode.MULTIRUN else None
            raise

    def checked_configuration(
        self, config_name: str, overrides: list[str], run_mode: RunMode, *arguments: Any, **further: Any
    ) -> DictConfig:
        words, repository = self.parsed(config_name, overrides)
        check_choices(words, repository)
        check_switches(words)
        added = {word.input_line for word in words if adds_argument(word, words)}
        forced = [f"++{line}" if line in added else line for line in overrides]
        try:
            config = super().load_configuration(config_name, forced, run_mode, *arguments, **further)
        except HydraException as error:
            if explanation := self.explained(error, config_name, words, repository):
                raise explanation from error
            raise
        except YAMLError as error:
            places = (Path(each.path.removeprefix("file://")) for each in self.config_search_path.get_path())
            raise InputError(invalid_yaml(error, places)) from error
        task = OmegaConf.to_container(config.hydra.overrides.task)  # as typed: references stay references
        config.hydra.overrides.task = [line[2:] if line[2:] in added else line for line in task]
        if run_mode == RunMode.MULTIRUN:  # each run of the sweep is composed and checked again
            return config
        check_packages(config, words, repository)
        declared = set(repository.load_config(config_name).config)
        allowed = {*TYPES, *declared, "hydra"}
        for key in set(config) - allowed:
            known = {name for name in keys_of(config) if name.split(".")[0] in allowed}
            raise unknown(key, value_of(key, words), known)
        for key in declared - set(config):
            raise InputError(f"{key} cannot be removed: use {key}=VALUE instead of ~{key}")
        drop_undeclared(config, words, repository)
        check_complete(config, repository)
        pass_sizes(config)
        check_parts(config, repository)
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The config of one run of a sweep. If it cannot be composed, it holds the reason; the other runs still take place."""
        try:
            return super().load_sweep_config(master_config, sweep_overrides)
        except InputError as error:
            config = copy.deepcopy(master_config)
            with open_dict(config):
                config.hydra.overrides.task = list(sweep_overrides)
                config.refusal = str(error)
            return config

    def parsed(self, config_name: str, overrides: list[str]) -> tuple[list[Override], Any]:
        """The parsed overrides, and the repository of config files."""
        try:
            return self._parse_overrides_and_create_caching_repo(config_name, overrides)
        except HydraException as error:
            found = re.search(r"override '(.*)'\n(.*)", str(error))
            if found is None:
                raise
            choices = {group: self.repository.get_group_options(group) for group in self.groups()}
            raise unreadable(found[1], found[2], choices, TYPES) from error

    def groups(self) -> list[str]:
        """The groups that a user chooses from: those of this package, of the user's folders, and of Hydra's launchers."""
        folders = [Path(source.path) for source in self.get_sources() if source.scheme() == "file"]
        return list(choices_in([folder for folder in folders if folder.is_dir()]))

    def explained(self, error: HydraException, config_name: str, words: Sequence[Override], repository: Any) -> InputError | None:
        """Hydra's error as a sentence that names what is allowed; None for errors that need no such explanation."""
        said = str(error)
        if found := re.match(r"Could not override '([^']+)'", said):
            group, _, package = found[1].partition("@")
            key = (package or group).removeprefix("_global_.")
            if repository.group_exists(group):
                place = f"{group}@{package}" if package else group
                return InputError(f"{place}: none of the chosen parts has a {group} in this place; choose one that has first")
            if "/" in key:
                return unknown_group(key, self.groups())
            return unknown(key, value_of(key, words), self.known_keys(config_name, words, repository))
        if found := re.match(r"Could not delete from config\. '([^']+)' does not exist", said):
            known = self.known_keys(config_name, words, repository)
            return InputError(f"there is no setting {found[1]} to remove{did_you_mean(found[1], known)}")
        if found := re.match(r"(?:In '.*': )?Could not (?:find|load) '([\w/]+)/([^'/]+)'", said):
            group, choice = found.groups()
            options = repository.get_group_options(group)
            return not_known(f"{group}={choice}", choice, options)
        if found := re.match(r"Error merging override \W?\W?(([\w.]+)=.*)", said):
            wanted = EXPECTED.get(TYPES.get(found[2], ""), "another value")
            return InputError(f"{found[1]}: {wanted} is expected")
        return None

    def known_keys(self, config_name: str, words: Sequence[Override], repository: Any) -> set[str]:
        """The settings of the chosen parts."""
        choices = [word.input_line for word in words if is_choice(word, repository) and not word.is_delete() and not word.package]
        try:
            return keys_of(super().load_configuration(config_name, choices, RunMode.RUN))
        except (HydraException, ConfigCompositionException):
            return keys_of(super().load_configuration(config_name, [], RunMode.RUN))


hydra_internals.ConfigLoaderImpl = Loader  # Hydra has no hook here


class OwnConfigs(SearchPathPlugin):
    """Makes Hydra search the folders of PUFFERFISH_CONF after conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in own_folders():
            search_path.append(VARIABLE, f"file://{folder.resolve()}")


Plugins.instance().register(OwnConfigs)


def is_choice(word: Override, repository: Any) -> bool:
    return repository.group_exists(word.key_or_group)


def check_choices(words: Sequence[Override], repository: Any) -> None:
    """Refuse overrides without a name, unknown Hydra settings, and a group without a choice."""
    for word in words:
        if not word.key_or_group:
            raise InputError(f"{word.input_line!r} has no name before the =; use KEY=VALUE")
        top, *below = word.key_or_group.split(".")
        if top in ("recipe", "table") and not below:
            how = "the model and the profile choose the recipe" if top == "recipe" else "pufferfish tables runs a table"
            raise InputError(f"{word.input_line}: {how}")
        if top == "hydra" and below and below[0] not in HYDRA:
            near = did_you_mean(below[0], HYDRA)
            raise InputError(
                f"there is no setting {word.key_or_group}{near}; hydra. can be followed by {', '.join(sorted(HYDRA))}"
            )
        named = word.is_delete() or word.is_sweep_override() or (isinstance(word.value(), str) and word.value())
        if word.key_or_group in SEVERAL and isinstance(word.value(), list):
            named = bool(word.value()) and all(isinstance(name, str) and name for name in word.value())
        none = word.package and word.value() is None  # reducer@method.warmup_reducer=null
        if is_choice(word, repository) and not named and not none:
            options = ", ".join(repository.get_group_options(word.key_or_group))
            raise InputError(f"{word.input_line} is not a valid choice; allowed: {options}")
        if (
            is_choice(word, repository)
            and not word.is_delete()
            and not word.is_sweep_override()
            and isinstance(word.value(), str)
        ):
            check_choice(word, repository.get_group_options(word.key_or_group))


def check_choice(word: Override, options: Sequence[str]) -> None:
    """Refuse a choice that does not exist, before anything is composed; a path such as a/b is left to Hydra."""
    choice = str(word.value())
    if choice not in options and "/" not in choice:
        raise not_known(word.input_line, choice, options)


def check_packages(config: DictConfig, words: Sequence[Override], repository: Any) -> None:
    """Refuse the choice of a nested group by its place only: Hydra needs GROUP@PLACE=NAME."""
    packages = dict(reversed(choice.split("@", 1)) for choice in config.hydra.runtime.choices if "@" in choice)
    for word in words:
        group = packages.get(word.key_or_group)
        if group and isinstance(word.value(), str):
            options = ", ".join(repository.get_group_options(group))
            raise InputError(
                f"{word.input_line}: choose a {group} here with {group}@{word.key_or_group}=NAME; allowed: {options}, null"
            )


def check_switches(words: Sequence[Override]) -> None:
    """Refuse numbers for booleans: OmegaConf would accept any number but 0 as true."""
    for word in words:
        number = isinstance(word.value(), int | float) and not isinstance(word.value(), bool)
        if TYPES.get(word.key_or_group) == "bool" and number:
            raise InputError(f"{word.input_line}: true or false is expected")
