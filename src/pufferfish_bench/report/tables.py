"""Tables for the terminal that never cut a number short."""

from collections.abc import Collection
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pufferfish_bench.visible import visible


class PlainTable(Table):
    """A table of words that nobody wrote for a terminal: what would steer one is spelt out. `show` takes no markup from them."""

    def add_row(self, *cells: str) -> None:
        super().add_row(*map(visible, cells))


def table(*columns: str, title: str | None = None, left: Collection[int] = (0,)) -> Table:
    """An empty table: words to the left, which are the first column if nothing else is said, numbers to the right."""
    heading = None if title is None else visible(title)
    empty = PlainTable(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        empty.add_column(visible(column), justify="left" if number in left else "right", no_wrap=True)
    return empty


def show(shown: Table, console: Console) -> None:
    """Print a table at its own width; a narrower terminal wraps lines, it does not lose digits."""
    plain: dict[str, Any] = {"file": console.file, "markup": False, "emoji": False}
    measure = Console(**plain, width=1000)
    natural = measure.measure(shown).maximum
    Console(**plain, width=max(natural, console.width)).print(shown, crop=False)
