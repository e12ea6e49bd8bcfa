"""Tables for the terminal that never cut a number short."""

import textwrap
from collections.abc import Collection, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

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


def show(shown: Table, console: Console, *, dispensable: Sequence[str] = ()) -> None:
    """Print a table that fits the width of the console.

    Where it does not fit, headings and words are wrapped. Where that is not enough, columns are left out whole, and named:
    those in `dispensable` (by their headings) in this order, then the last ones. The first column always stays.
    """
    console = Console(file=console.file, width=console.width, markup=False, emoji=False)  # brackets are no markup
    left_out = []
    if natural_width(shown, console) > console.width:
        shown, left_out = fitted(shown, console, dispensable)
    width = console.width
    console.width = max(natural_width(shown, console), width)
    console.print(shown, crop=False)
    if left_out:
        console.width = width
        sentence = f"Left out to fit {width} columns: {', '.join(left_out)}. COLUMNS=200 before the command shows more."
        console.print(sentence, highlight=False)


def natural_width(shown: Table, console: Console) -> int:
    """The width that a table takes where there is room for it."""
    return console.measure(shown, options=console.options.update(width=10_000)).maximum


def fitted(shown: Table, console: Console, dispensable: Sequence[str]) -> tuple[Table, list[str]]:
    """The table as it fits the console's width, and the headings of the columns that had to go."""
    columns, all_headings = list(shown.columns), [heading(column) for column in shown.columns]
    left_out: list[str] = []
    while narrow(smaller := rebuilt(shown, columns), console) > 0 and len(columns) > 2:
        headings = [heading(column) for column in columns]
        gone = next((headings.index(name, 1) for name in dispensable if name in headings[1:]), len(headings) - 1)
        left_out.append(headings[gone])
        del columns[gone]
    return smaller, sorted(left_out, key=all_headings.index)


def rebuilt(shown: Table, columns: Sequence[Column]) -> Table:
    """The table with these of its columns, closer together, and with headings no wider than what is below them or one word."""
    closer = {"show_edge": False, "pad_edge": False, "padding": (0, 1, 0, 0), "box": shown.box}
    smaller = Table(title=shown.title, title_justify=shown.title_justify, title_style=shown.title_style, **closer)
    for column in columns:
        width = max([5, *map(cell_len, words(column))])
        parts = str(column.header).replace(".", ". ")  # a dotted key may go over several lines
        lines = textwrap.wrap(parts, width, break_long_words=False, break_on_hyphens=False)
        name = "\n".join(lines).replace(". ", ".")
        smaller.add_column(name, justify=column.justify, no_wrap=column.justify == "right", overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        smaller.add_row(*cells)
    return smaller


def narrow(shown: Table, console: Console) -> int:
    """Wrap the words of a table, the widest column first, as far as it takes and words allow; return what it is too wide by."""
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
    """What is written in the cells of a column."""
    return [str(cell) for cell in column.cells] or [""]


def heading(column: Column) -> str:
    return str(column.header).replace("\n", " ")
