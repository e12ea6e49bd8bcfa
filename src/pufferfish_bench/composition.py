"""What Hydra composes, made consistent: a recipe fills only what the chosen parts know, and a mistyped word is refused.

A recipe, or a method, may set keys of a model, data set, optimizer or schedule that the user has replaced by another one. The
file of a part declares its keys; what it does not declare is dropped if a recipe has set it, and refused if the user has.
"""

import copy
import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hydra._internal import hydra as hydra_internals
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.conf import HydraConf
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationKeyError

from pufferfish_bench.errors import InputError
from pufferfish_bench.settings import FOR_OTHERS, Settings
from pufferfish_bench.typed import located, parameters

CONFIGS = ("config", "describe")  # ours: Hydra also composes some of its own
EXPECTED = {
    "int": "an integer",
    "int | None": "an integer or null",
    "float": "a number",
    "float | None": "a number or null",
    "list[float] | None": "a list of numbers or null",
    "bool": "true or false",
    "str": "a text",
}
ALIASES = {
    "lr": "schedule.learning_rate", "rate": "schedule.learning_rate", "wd": "optimizer.weight_decay", "bs": "batch_size",
    "batch": "batch_size", "net": "model", "data": "dataset", "warmup": "warmup_epochs", "rank": "reducer.rank",
}  # fmt: skip
HYDRA = {field.name for field in dataclasses.fields(HydraConf)}
TYPES = {field.name: getattr(field.type, "__name__", str(field.type)) for field in dataclasses.fields(Settings)}


class Loader(ConfigLoaderImpl):
    """Hydra's, with our checks between composing a config and handing it out."""

    def load_configuration(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode, *arguments: Any, **further: Any
    ) -> DictConfig:
        if config_name not in CONFIGS:
            return super().load_configuration(config_name, overrides, run_mode, *arguments, **further)
        words, repository = self.parsed(config_name, overrides)
        check_choices(words, repository)
        check_switches(words)
        try:
            config = super().load_configuration(config_name, overrides, run_mode, *arguments, **further)
        except HydraException as error:
            if sentence := self.explained(error, config_name, words, repository):
                raise sentence from error
            raise
        if run_mode == RunMode.MULTIRUN:  # each of its runs is composed again
            return config
        here = set(repository.load_config(config_name).config)
        own = {*TYPES, *here, "hydra"}
        for key in set(config) - own:
            known = {name for name in keys_of(config) if name.split(".")[0] in own}
            raise unknown(key, value_of(key, words), known)
        for key in here - set(config):
            raise InputError(f"{key} cannot be left out: give {key}=VALUE instead of ~{key}")
        tidy(config, words, repository)
        check_parts(config, repository)
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The config of one run of a sweep. One that cannot be composed says why when its turn comes: the others are run."""
        try:
            return super().load_sweep_config(master_config, sweep_overrides)
        except InputError as error:
            config = copy.deepcopy(master_config)
            with open_dict(config):
                config.hydra.overrides.task = list(sweep_overrides)
                config.refusal = str(error)
            return config

    def parsed(self, config_name: str, overrides: list[str]) -> tuple[list[Override], Any]:
        """The words of the command line, and where config files are looked for."""
        try:
            return self._parse_overrides_and_create_caching_repo(config_name, overrides)
        except HydraException as error:
            found = re.search(r"override '(.*)'\n(.*)", str(error))
            if found is None:
                raise
            raise InputError(f"{found[1]!r} cannot be read as KEY=VALUE: {found[2]}") from error

    def explained(self, error: HydraException, config_name: str, words: Sequence[Override], repository: Any) -> InputError | None:
        """What Hydra refuses, in a sentence that says what is allowed."""
        said = str(error)
        if found := re.match(r"Could not override '([^']+)'", said):
            key = found[1].split("@")[0]
            return unknown(key, value_of(key, words), self.known_keys(config_name, words, repository))
        if found := re.match(r"(?:In '.*': )?Could not (?:find|load) '(\w+)/([^']+)'", said):
            group, choice = found.groups()
            options = repository.get_group_options(group)
            return InputError(f"{group}={choice} is not known{did_you_mean(choice, options)}; allowed: {', '.join(options)}")
        if found := re.match(r"Error merging override \W?\W?(([\w.]+)=.*)", said):
            wanted = EXPECTED.get(TYPES.get(found[2], ""), "another value")
            return InputError(f"{found[1]}: {wanted} is expected")
        return None

    def known_keys(self, config_name: str, words: Sequence[Override], repository: Any) -> set[str]:
        """The settings of the chosen parts."""
        choices = [word.input_line for word in words if is_choice(word, repository) and not word.is_delete()]
        try:
            return keys_of(super().load_configuration(config_name, choices, RunMode.RUN))
        except (HydraException, ConfigCompositionException):
            return keys_of(super().load_configuration(config_name, [], RunMode.RUN))


hydra_internals.ConfigLoaderImpl = Loader  # Hydra has no hook at this place


def is_choice(word: Override, repository: Any) -> bool:
    return repository.group_exists(word.key_or_group)


def check_choices(words: Sequence[Override], repository: Any) -> None:
    """Refuse a group to which no name is given."""
    for word in words:
        if not word.key_or_group:
            raise InputError(f"{word.input_line!r} has no setting before its =")
        top, *below = word.key_or_group.split(".")
        if top == "hydra" and below and below[0] not in HYDRA:
            raise InputError(f"there is no setting {word.key_or_group}; Hydra has {', '.join(sorted(HYDRA))}")
        sweep = word.is_sweep_override()
        if is_choice(word, repository) and not (word.is_delete() or sweep or (isinstance(word.value(), str) and word.value())):
            options = ", ".join(repository.get_group_options(word.key_or_group))
            raise InputError(f"{word.input_line} names no {word.key_or_group}; allowed: {options}")


def check_switches(words: Sequence[Override]) -> None:
    """Refuse numbers where true or false belongs: OmegaConf takes any number but 0 for true."""
    for word in words:
        if (
            TYPES.get(word.key_or_group) == "bool"
            and isinstance(word.value(), int | float)
            and not isinstance(word.value(), bool)
        ):
            raise InputError(f"{word.input_line}: true or false is expected")


def value_of(key: str, words: Sequence[Override]) -> str:
    """What the user gave for a key, as it was typed."""
    typed = [word.input_line.partition("=")[2] for word in words if word.key_or_group == key]
    return typed[-1] if typed else ""


def unknown(key: str, value: str, known: Collection[str]) -> InputError:
    """There is no such key; say which there are."""
    near = suggestions(key, known)
    if near:
        return InputError(f"there is no setting {key}; did you mean {' or '.join(f'{name}={value}' for name in near)}?")
    group = key.rpartition(".")[0]
    beside = sorted(name for name in known if group and name.rpartition(".")[0] == group)
    return InputError(
        f"there is no setting {key}; " + (f"there are {', '.join(beside)}" if beside else "--cfg job lists them all")
    )


def suggestions(key: str, known: Collection[str]) -> list[str]:
    """The known keys that are nearest to a mistyped one: of that name in a group, or spelled much like it."""
    group, _, last = key.rpartition(".")
    if group:  # a name of this group is meant, or the same name in another
        known = {name for name in known if name.rpartition(".")[0] == group or name.rpartition(".")[2] == last}
    same = [name for name in sorted(known) if name.rsplit(".", 1)[-1] == last]
    ends = {name.rsplit(".", 1)[-1]: name for name in sorted(known, reverse=True)}
    near = [ends[end] for end in difflib.get_close_matches(last, ends, n=1, cutoff=0.75)]
    alias = [ALIASES[last]] if ALIASES.get(last) in known else []
    spelled = [] if group else difflib.get_close_matches(key, sorted(known), n=2, cutoff=0.7)
    return list(dict.fromkeys([*alias, *same, *spelled, *near]))[:3]


def did_you_mean(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def keys_of(config: DictConfig, prefix: str = "") -> set[str]:
    """All settings with the names that the command line takes, Hydra's own left out."""
    found = set()
    for key in config:
        if str(key).startswith("_") or (not prefix and key == "hydra"):
            continue
        found.add(f"{prefix}{key}")
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_interpolation() and not node._is_missing() and not node._is_none():
            found |= keys_of(node, f"{prefix}{key}.")
    return found


def missing_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Settings that are to be given and are not: ??? in a file, or taken out of the config. Resolves nothing."""
    for key in config:
        node = config._get_node(key)
        if node._is_missing():
            yield f"{prefix}{key}"
        elif isinstance(node, DictConfig) and not node._is_interpolation() and not node._is_none() and (prefix or key != "hydra"):
            yield from missing_keys(node, f"{prefix}{key}.")


def tidy(config: DictConfig, words: Sequence[Override], repository: Any) -> None:
    """Take out what a recipe has set of parts that are not there; refuse what the user has."""
    given = {word.key_or_group for word in words}
    for group, choice in config.hydra.runtime.choices.items():
        node = config.get(group) if group in TYPES else None
        if not isinstance(node, DictConfig) or choice is None:
            continue
        declared = set(declared_keys(f"{group}/{choice}", group, repository))
        own = {word.key_or_group.split(".")[1] for word in words if word.key_or_group.startswith(f"{group}.")}
        if "_target_" in own:  # something else than what the file describes: its constructor says what it takes
            takes = parameters(located(node._target_, group))
            declared = {key for key in node if key.startswith("_") or takes is None or key in (*takes, *own, *FOR_OTHERS)}
        replaced = group == "schedule" and "milestones" not in declared and "search_milestones" not in given
        if replaced and "search_milestones" in config:
            config.search_milestones = None  # a recipe's, of the schedule that was replaced
        for key in list(node):
            if key in declared:
                continue
            if key in own:
                full, known = f"{group}.{key}", {f"{group}.{name}" for name in declared if not name.startswith("_")}
                raise InputError(f"{group}={choice}: {unknown(full, value_of(full, words), known)}")
            with open_dict(node):
                del node[key]


def declared_keys(path: str, group: str, repository: Any) -> Iterator[str]:
    """The keys of a part that its file, or a file of the same group on which it is built, has."""
    loaded = repository.load_config(path)
    if loaded is None:
        return
    everywhere = loaded.header.get("package") == "_global_"
    yield from (loaded.config.get(group, {}) if everywhere else loaded.config)
    for default in loaded.defaults_list:
        name = getattr(default, "path", None)
        if name is None:
            yield from [] if default.group.startswith("/") else [default.group]  # a group of its own inside this one
        elif not name.startswith("/") and name != "_self_":
            yield from declared_keys(f"{group}/{name}", group, repository)


def check_parts(config: DictConfig, repository: Any) -> None:
    """Refuse parts that are missing, that do not fit together, or that refer to settings which are not there."""
    for key in missing_keys(config):
        options = repository.get_group_options(key) if repository.group_exists(key) else []
        allowed = f"one of {', '.join(options)}" if options else "a value"
        raise InputError(f"{key} is not set: give {key}= and {allowed}")
    check_kinds(config, repository)
    for group in config.hydra.runtime.choices:
        if group not in TYPES or group not in config:
            continue
        try:
            OmegaConf.to_container(config[group], resolve=True)
        except InterpolationKeyError as error:
            wanted = re.findall("'(.*)'", str(error))
            raise InputError(
                f"{error.full_key} is taken from {' '.join(wanted)}, which is not set: give {error.full_key}=VALUE"
            ) from None
    for key in ("classes", "vocabulary"):
        of_model, of_data = (config[group].get(key) if group in config else None for group in ("model", "dataset"))
        if None not in (of_model, of_data) and of_model != of_data:
            raise InputError(f"model.{key}={of_model}, but dataset.{key}={of_data}: leave model.{key} out")


def check_kinds(config: DictConfig, repository: Any) -> None:
    """Refuse a data set that is not what the model learns from."""
    model, dataset = (config[group].get("kind") if group in config else None for group in ("model", "dataset"))
    if None in (model, dataset) or model == dataset:
        return
    options = repository.get_group_options("dataset")
    fitting = [name for name in options if kind_of(f"dataset/{name}", repository) == model]
    chosen = config.hydra.runtime.choices
    raise InputError(
        f"model={chosen.model} learns from {model}, and dataset={chosen.dataset} has {dataset}; "
        f"choose dataset= one of {', '.join(fitting)}"
    )


def kind_of(path: str, repository: Any) -> str | None:
    """What a data set has, as its file or the one on which it is built says."""
    loaded = repository.load_config(path)
    below = (getattr(default, "path", None) for default in loaded.defaults_list)
    bases = [f"{path.rpartition('/')[0]}/{name}" for name in below if name and not name.startswith("/") and name != "_self_"]
    return loaded.config.get("kind") or next((kind for base in bases if (kind := kind_of(base, repository))), None)
