"""Tables for the terminal that never cut a number short."""

from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table


def table(*columns: str, title: str | None = None, left: Collection[int] = (0,)) -> Table:
    """An empty table: words to the left, which are the first column if nothing else is said, numbers to the right."""
    empty = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        empty.add_column(column, justify="left" if number in left else "right", no_wrap=True)
    return empty


def show(shown: Table, console: Console) -> None:
    """Print a table at its own width; a narrower terminal wraps lines, it does not lose digits."""
    natural = console.measure(shown, options=console.options.update(width=1000)).maximum
    Console(file=console.file, width=max(natural, console.width)).print(shown, crop=False)
