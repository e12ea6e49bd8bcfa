"""Makes a composed config consistent: matches the settings of a recipe with the parts that were chosen.

A recipe or a method may set keys of a model, data set, optimizer or schedule that the user has replaced by another one. The file
of a part declares its keys. A key that it does not declare is dropped if a recipe set it, and refused if the user did.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationKeyError

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config.settings import LAYOUTS, TYPES, plain
from pufferfish_bench.config.signatures import TARGET, located, parameters
from pufferfish_bench.config.suggestions import unknown


def value_of(key: str, words: Sequence[Override]) -> str:
    """The value that the user typed for a key."""
    typed = [word.input_line.partition("=")[2] for word in words if key in (word.key_or_group, word.package)]
    return typed[-1] if typed else ""


def drop_undeclared(config: DictConfig, words: Sequence[Override], repository: Any) -> None:
    """Drop keys that the chosen parts do not declare if a recipe set them; refuse them if the user did."""
    for group, choice in config.hydra.runtime.choices.items():
        if group not in LAYOUTS or not isinstance(config.get(group), DictConfig) or choice is None:
            continue
        layout, in_file = LAYOUTS[group], declared_keys(f"{group}/{choice}", group, repository)
        accepts = replacement(config, group, words)
        for section in dict.fromkeys(("", layout.constructor, *layout.further)):
            place = f"{group}.{section}".rstrip(".")
            node = config[group].get(section) if section else config[group]
            if not isinstance(node, DictConfig):
                continue
            declared = set((in_file.get(section) or {}) if section else (*in_file, *layout.common))
            if accepts and (section or not layout.constructor):
                own = given_below(place, words)
                declared = {key for key in node if key in own or key in layout.sections or accepts(key)}
            drop(node, place, declared, words, choice=f"{group}={choice}")
    by_user = any(word.key_or_group == "search_milestones" for word in words)
    if "search_milestones" in config and not by_user and "milestones" not in (config.get("schedule") or ()):
        config.search_milestones = None  # set by a recipe for a schedule that was replaced


def replacement(config: DictConfig, group: str, words: Sequence[Override]) -> Callable[[str], bool] | None:
    """If the user has given their own `_target_`: a function that tells whether it accepts a key. Otherwise None."""
    place = f"{group}.{LAYOUTS[group].constructor}".rstrip(".")
    if TARGET not in given_below(place, words):
        return None
    takes = parameters(located(OmegaConf.select(config, f"{place}.{TARGET}"), place))
    return lambda key: key.startswith("_") or takes is None or key in takes


def adds_argument(word: Override, words: Sequence[Override]) -> bool:
    """Whether the user sets an argument that files need not declare: of their own constructor, or inside one of the model's.

    Hydra would accept it only with + in front. The constructor's signature is checked later.
    """
    if word.type is not OverrideType.CHANGE:
        return False
    places = [f"{group}.{layout.constructor}".rstrip(".") for group, layout in LAYOUTS.items()]
    own = any(word.key_or_group.startswith(f"{place}.") and TARGET in given_below(place, words) for place in places)
    return own or re.match(r"model\.net\.\w+\.", word.key_or_group) is not None


def pass_sizes(config: DictConfig) -> None:
    """Pass the sizes in `model.from_data` to the model's constructor, under the names that it takes, unless model.net sets them.

    A constructor that accepts any keyword gets only the first.
    """
    sizes = plain(config.model.get("from_data")) if isinstance(config.get("model"), DictConfig) else None
    net = config.model.get("net") if sizes else None
    target = net._get_node(TARGET) if isinstance(net, DictConfig) and TARGET in net else None
    if not isinstance(sizes, dict) or target is None or target._is_missing() or not isinstance(net[TARGET], str):
        return
    known = {name: size for name, size in sizes.items() if size is not None}
    takes = parameters(located(net[TARGET], "model.net"))
    names = list(known)[:1] if takes is None else [name for name in known if name in takes]
    with open_dict(net):
        for name in names:
            if name not in net:
                net[name] = known[name]


def given_below(place: str, words: Sequence[Override]) -> set[str]:
    """The keys of a part or section that the user has set."""
    prefix = f"{place}."
    return {word.key_or_group.removeprefix(prefix).split(".")[0] for word in words if word.key_or_group.startswith(prefix)}


def drop(node: DictConfig, place: str, declared: Collection[str], words: Sequence[Override], *, choice: str) -> None:
    own = given_below(place, words)
    for key in [key for key in node if key not in declared]:
        if key in own:
            full, known = f"{place}.{key}", {f"{place}.{name}" for name in declared if not name.startswith("_")}
            raise InputError(f"{choice}: {unknown(full, value_of(full, words), known)}")
        with open_dict(node):
            del node[key]


def declared_keys(path: str, group: str, repository: Any) -> dict[str, Any]:
    """The keys, nested, in the file of a part and in files of the same group that it includes."""
    loaded = repository.load_config(path)
    if loaded is None:
        return {}
    everywhere = loaded.header.get("package") == "_global_"
    own = OmegaConf.to_container(loaded.config)
    found: dict[str, Any] = {}
    for default in loaded.defaults_list:
        name = getattr(default, "path", None)
        if name is None and not default.group.startswith("/"):
            found[default.group] = {}  # a nested group
        elif name and not name.startswith("/") and name != "_self_":
            found = merged(found, declared_keys(f"{group}/{name}", group, repository))
    return merged(found, own.get(group, {}) if everywhere else own)


def merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The keys of both, nested."""
    both = {
        key: merged(base[key], other[key]) for key in base if isinstance(base[key], dict) and isinstance(other.get(key), dict)
    }
    return base | other | both


def missing_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Required settings without a value: ??? in a file, or removed by the user. Resolves no references."""
    for key in config:
        node = config._get_node(key)
        if node._is_missing():
            yield f"{prefix}{key}"
        elif isinstance(node, DictConfig) and not node._is_interpolation() and not node._is_none() and (prefix or key != "hydra"):
            yield from missing_keys(node, f"{prefix}{key}.")


def check_complete(config: DictConfig, repository: Any) -> None:
    """Refuse required settings without a value."""
    for key in missing_keys(config):
        options = repository.get_group_options(key) if repository.group_exists(key) else []
        allowed = f"one of {', '.join(options)}" if options else "a value"
        raise InputError(f"{key} is not set: use {key}= with {allowed}")


def check_parts(config: DictConfig, repository: Any) -> None:
    """Refuse parts that do not work together, or refer to settings that do not exist."""
    check_kinds(config, repository)
    for group in config.hydra.runtime.choices:
        if group not in TYPES or group not in config:
            continue
        try:
            OmegaConf.to_container(config[group], resolve=True)
        except InterpolationKeyError as error:
            wanted = re.findall("'(.*)'", str(error))
            raise InputError(
                f"{error.full_key} refers to {' '.join(wanted)}, which is not set: use {error.full_key}=VALUE"
            ) from None
    for key in ("classes", "vocabulary"):
        of_model, of_data = (OmegaConf.select(config, f"{place}.{key}") for place in ("model.net", "dataset"))
        if None not in (of_model, of_data) and of_model != of_data:
            raise InputError(f"model.net.{key}={of_model}, but dataset.{key}={of_data}: leave model.net.{key} out")


def check_kinds(config: DictConfig, repository: Any) -> None:
    """Refuse a data set whose kind of data does not match the model."""
    model, dataset = (OmegaConf.select(config, key) for key in ("model.kind", "dataset.input.kind"))
    if None in (model, dataset) or model == dataset:
        return
    options = repository.get_group_options("dataset")
    kinds = {name: declared_keys(f"dataset/{name}", "dataset", repository).get("input", {}).get("kind") for name in options}
    chosen = config.hydra.runtime.choices
    raise InputError(
        f"model={chosen.model} learns from {model}, but dataset={chosen.dataset} has {dataset}; "
        f"use dataset= with one of {', '.join(name for name in options if kinds[name] == model)}"
    )
