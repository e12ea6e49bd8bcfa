"""Printing for people: the console, and lines that show any text literally. Knows no command, no Hydra and no torch."""

import os

from rich.console import Console
from rich.text import Text

from pufferfish_bench.base.printable import printable

RANK = int(os.environ.get("RANK", "0"))  # of this process among those that torchrun started
PART_OF_MANY = "PUFFERFISH_PART_OF_MANY"  # set for runs that another command starts: they do not say what to do next

console = Console(quiet=RANK > 0)
complaints = Console(stderr=True)


def about(seconds: float) -> str:
    """A rough duration in words, such as "about 3 hours"."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds:.0f} seconds"


def complain(message: str) -> None:
    say(f"rank {RANK}: {message}" if RANK else message, complaints, lines=True)


def say(words: str, to: Console = console, *, lines: bool = False, style: str = "") -> None:
    """Print text literally: brackets are not markup, and control characters are escaped.

    With `lines`, line breaks are kept; names from untrusted sources must then be escaped before.
    """
    to.print(Text(printable(words, lines=lines), style), highlight=False, soft_wrap=True)
