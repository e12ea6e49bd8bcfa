"""The groups of settings and their choices, read from the folders of config files. Imports neither Hydra nor OmegaConf."""

from collections.abc import Sequence
from pathlib import Path

FIRST = ("model", "method", "dataset", "profile")  # in the order in which a user chooses
INTERNAL = ("recipe", "table", "base", "hydra")  # chosen by other files, not on the command line


def choices(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Every group with its choices, as GROUP=CHOICE on the command line: those that a user chooses first, then by name."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for path in folder.glob("*/**/*.yaml"):
            group = path.parent.relative_to(folder)
            if not {*group.parts} & {*INTERNAL}:
                found.setdefault(group.as_posix(), set()).add(path.stem)
    return {group: sorted(found[group]) for group in sorted(found, key=rank)}


def rank(group: str) -> tuple[int, str]:
    top = group.split("/")[0]
    return (FIRST.index(top) if top in FIRST else len(FIRST), group)


def groups_with(choice: str, found: dict[str, list[str]]) -> list[str]:
    """The groups that have this choice."""
    return [group for group, names in found.items() if choice in names]
