"""The names nearest to one that is not known, for error messages. Every command uses these sentences."""

import difflib
from collections.abc import Collection

from pufferfish_bench.base.errors import InputError

MOST = 2  # names that a sentence suggests
SHORTEST = 3  # letters of a word that may be a part of a name
LONGEST = 20  # names that a sentence lists beside the nearest


def nearest(word: str, known: Collection[str]) -> list[str]:
    """The known names that are spelled most like a word, whatever its case, or that contain it."""
    names = {name.lower().replace("-", "_"): name for name in reversed(list(known))}
    wanted = word.lower().replace("-", "_")
    close = difflib.get_close_matches(wanted, names, n=MOST)
    parts = [name for name in reversed(names) if len(wanted) >= SHORTEST and wanted in name]
    return [names[name] for name in dict.fromkeys([*close, *parts])][:MOST]


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A remark with the nearest names, to stand in a sentence; empty if no name is near."""
    near = nearest(word, known)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def not_known(given: str, word: str, known: Collection[str]) -> InputError:
    """The error for a name outside a list: what was given, the nearest names, and the list if it is short or nothing is near."""
    near = did_you_mean(word, known)
    allowed = f"; allowed: {', '.join(known)}" if len(known) <= LONGEST or not near else ""
    return InputError(f"{given} is not known{near}{allowed}")
