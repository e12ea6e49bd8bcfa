"""Which constructors a record may name, because somebody else may have written it. Nothing is imported to refuse a name.

A record may name what a file of the same group in conf/ names as `_target_`, and what the user allows. A method may also
contain a reducer (of its warm-up).
"""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.config import yaml_files
from pufferfish_bench.config.settings import config_dir

GROUPS = {"model": ("model",), "dataset": ("dataset",), "reducer": ("reducer",), "method": ("method", "reducer")}


@cache
def known(group: str) -> frozenset[str]:
    """The constructors that conf/ names for a group."""
    folders = (Path(config_dir()) / folder for folder in GROUPS[group])
    contents = [yaml_files.read(path) for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    named = frozenset(value for content in contents for place, value in walk(content, group) if place.endswith("._target_"))
    return named - {"???"}  # of model=any


def vet(group: str, settings: Any, allowed: Collection[str] = ()) -> None:
    """Refuse settings of a record that name a constructor that neither conf/ names for this group nor the user allows."""
    name = settings.get("_target_") if isinstance(settings, dict) else None
    if not isinstance(name, str):
        raise InputError(f"the record's {group} has no _target_, which names the class or function to call")
    refuse_references(group, settings)
    for place, value in walk(settings, group):
        if place.endswith("._target_") and value not in known(group.split(".")[0]) and value not in allowed:
            shown = printable(str(value))
            raise InputError(
                f"the record's {printable(place)} is {shown}, which is not a {group} of this package and would be executed; "
                f"if you trust it, give --allow {shown}"
            )


def refuse_references(group: str, settings: Any) -> None:
    """Refuse references: settings are recorded as values, and a reference could hide a name from `vet`."""
    for place, value in walk(settings, group):
        if isinstance(value, str) and "${" in value:
            raise InputError(f"the record's {printable(place)} is a reference, which no run writes: {printable(value)}")


def walk(settings: Any, place: str) -> list[tuple[str, Any]]:
    """All keys and values of nested settings, each with its path."""
    if isinstance(settings, dict):
        inside = [(f"{place}.{key}", value) for key, value in settings.items()]
        keys = [(place, key) for key in settings]
    elif isinstance(settings, list):
        inside, keys = [(f"{place}.{number}", value) for number, value in enumerate(settings)], []
    else:
        return []
    return [*keys, *inside, *(found for here, value in inside for found in walk(value, here))]
