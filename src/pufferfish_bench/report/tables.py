"""Tables for the terminal that never truncate a number."""

import textwrap
from collections.abc import Collection, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from pufferfish_bench.base.printable import printable


class PlainTable(Table):
    """A table whose texts may come from records: control characters are escaped, and `show` interprets no markup."""

    def add_row(self, *cells: str) -> None:
        super().add_row(*map(printable, cells))


def table(*columns: str, title: str | None = None, left: Collection[int] = (0,)) -> Table:
    """An empty table; the columns in `left` are left-aligned, by default the first, and the others right-aligned."""
    heading = None if title is None else printable(title)
    empty = PlainTable(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        empty.add_column(printable(column), justify="left" if number in left else "right", no_wrap=True)
    return empty


def show(shown: Table, console: Console, *, dispensable: Sequence[str] = ()) -> None:
    """Print a table that fits the width of the console.

    If it is too wide, headings and text are wrapped. If that is not enough, whole columns are left out, and named below it:
    those in `dispensable` (by their headings) in this order, then the last ones. The first column always stays.
    """
    console = Console(file=console.file, width=console.width, markup=False, emoji=False)  # brackets are not markup
    left_out = []
    if natural_width(shown, console) > console.width:
        shown, left_out = fitted(shown, console, dispensable)
    width = console.width
    console.width = max(natural_width(shown, console), width)
    console.print(shown, crop=False)
    if left_out:
        console.width = width
        sentence = f"Left out to fit {width} columns: {', '.join(left_out)}. Set COLUMNS=200 to see more."
        console.print(sentence, highlight=False)


def natural_width(shown: Table, console: Console) -> int:
    """The width of a table if there is enough room."""
    return console.measure(shown, options=console.options.update(width=10_000)).maximum


def fitted(shown: Table, console: Console, dispensable: Sequence[str]) -> tuple[Table, list[str]]:
    """The table fitted to the console's width, and the headings of the columns that were left out."""
    columns, all_headings = list(shown.columns), [heading(column) for column in shown.columns]
    left_out: list[str] = []
    while narrow(smaller := rebuilt(shown, columns), console) > 0 and len(columns) > 2:
        headings = [heading(column) for column in columns]
        gone = next((headings.index(name, 1) for name in dispensable if name in headings[1:]), len(headings) - 1)
        left_out.append(headings[gone])
        del columns[gone]
    return smaller, sorted(left_out, key=all_headings.index)


def rebuilt(shown: Table, columns: Sequence[Column]) -> Table:
    """The table with only these columns, less padding, and headings wrapped to the width of their column or one word."""
    closer = {"show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0), "box": shown.box}
    smaller = Table(title=shown.title, title_justify=shown.title_justify, title_style=shown.title_style, **closer)
    for column in columns:
        width = max([5, *map(cell_len, words(column))])
        parts = str(column.header).replace(".", ". ")  # a dotted key may be wrapped at its dots
        lines = textwrap.wrap(parts, width, break_long_words=False, break_on_hyphens=False)
        name = "\n".join(lines).replace(". ", ".")
        smaller.add_column(name, justify=column.justify, no_wrap=column.justify == "right", overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        smaller.add_row(*cells)
    return smaller


def narrow(shown: Table, console: Console) -> int:
    """Wrap text columns, the widest first, until the table fits or single words remain; return how much too wide it still is."""
    for column in shown.columns:
        column.width = max(map(cell_len, [*words(column), *str(column.header).split("\n")]))
    shortest = {
        number: max((cell_len(word) for text in [*words(column), str(column.header)] for word in text.split()), default=1)
        for number, column in enumerate(shown.columns)
        if not column.no_wrap
    }
    excess = natural_width(shown, console) - console.width
    while excess > 0:
        wide = [number for number, least in shortest.items() if shown.columns[number].width > least]
        if not wide:
            break
        shown.columns[max(wide, key=lambda number: shown.columns[number].width)].width -= 1
        excess -= 1
    return excess


def words(column: Column) -> list[str]:
    """The texts of a column."""
    return [str(cell) for cell in column.cells] or [""]


def heading(column: Column) -> str:
    return str(column.header).replace("\n", " ")
