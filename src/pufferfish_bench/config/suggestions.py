"""Messages for an unknown setting or choice, with suggestions."""

import difflib
from collections.abc import Collection, Mapping

from omegaconf import DictConfig

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import did_you_mean, nearest

ALIASES = {
    "lr": "schedule.learning_rate", "rate": "schedule.learning_rate", "wd": "optimizer.weight_decay", "bs": "batch_size",
    "batch": "batch_size", "net": "model", "data": "dataset", "warmup": "warmup_epochs", "rank": "reducer.rank",
}  # fmt: skip


def unknown(key: str, value: str, known: Collection[str]) -> InputError:
    """The error for a setting that does not exist, with the most similar ones that do."""
    near = suggestions(key, known)
    if near:
        return InputError(f"there is no setting {key}; did you mean {' or '.join(f'{name}={value}' for name in near)}?")
    group = key.rpartition(".")[0]
    beside = sorted(name for name in known if group and name.rpartition(".")[0] == group)
    return InputError(
        f"there is no setting {key}; " + (f"there are {', '.join(beside)}" if beside else "--help-settings lists all settings")
    )


def suggestions(key: str, known: Collection[str]) -> list[str]:
    """The known settings most similar to an unknown one: with the same name elsewhere, or with similar spelling."""
    group, _, last = key.rpartition(".")
    everywhere = sorted(known)
    below = [name for name in sorted(known) if group and name.startswith(f"{group}.") and name.rpartition(".")[2] == last]
    if below:  # in a section of the same group: model.width -> model.net.width
        return below[:3]
    if group:  # suggest names in this group, or the same name in another
        known = {name for name in known if name.rpartition(".")[0] == group or name.rpartition(".")[2] == last}
    same = [name for name in sorted(known) if name.rsplit(".", 1)[-1] == last]
    ends = {name.rsplit(".", 1)[-1]: name for name in sorted(known, reverse=True)}
    near = [ends[end] for end in difflib.get_close_matches(last, ends, n=1, cutoff=0.75)]
    alias = [ALIASES[last]] if ALIASES.get(last) in known else []
    spelled = [] if group else difflib.get_close_matches(key, sorted(known), n=2, cutoff=0.7)
    found = list(dict.fromkeys([*alias, *same, *spelled, *near]))[:3]
    if found or any(name.startswith(f"{group}.") for name in everywhere):
        return found
    return difflib.get_close_matches(key, everywhere, n=1, cutoff=0.75)  # mistakes in more than the last name


def unknown_group(group: str, known: Collection[str]) -> InputError:
    """The error for a group of choices that does not exist."""
    return InputError(f"there is no group {group}{did_you_mean(group, known)}; there are {', '.join(known)}")


def unreadable(word: str, reason: str, choices: Mapping[str, Collection[str]], keys: Collection[str]) -> InputError:
    """The error for a word that is not KEY=VALUE, with what a single name may have meant."""
    meant = ["--help"] if word == "help" else [f"{group}={word}" for group, names in choices.items() if word in names]
    if not meant and "=" not in word:
        names = [(group, name) for group, own in choices.items() for name in nearest(word, own)[:1]]
        closest = nearest(word, [name for _, name in names])[:1]
        meant = [f"{word}=VALUE"] if word in keys else [f"{group}={name}" for group, name in names if name in closest]
    return InputError(
        f"{word!r} cannot be read as KEY=VALUE: " + (f"did you mean {' or '.join(meant[:2])}?" if meant else reason)
    )


def keys_of(config: DictConfig, prefix: str = "") -> set[str]:
    """The names of all settings as the command line spells them, without Hydra's own."""
    found = set()
    for key in config:
        if str(key).startswith("_") or (not prefix and key == "hydra"):
            continue
        found.add(f"{prefix}{key}")
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_interpolation() and not node._is_missing() and not node._is_none():
            found |= keys_of(node, f"{prefix}{key}.")
    return found
