"""Tables as data, and how they are shown: on the terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench.base.console import say
from pufferfish_bench.base.printable import in_markdown, printable
from pufferfish_bench.records import files, provenance
from pufferfish_bench.records.measured import Measured
from pufferfish_bench.report import tables


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and the number behind it, if any, by which a column is sorted."""

    text: str
    value: float | None = None


EMPTY = Cell("")


def number(value: float | None, show: Callable[[float], str]) -> Cell:
    """A cell that shows a number; an empty one if there is none."""
    return EMPTY if value is None else Cell(show(value), value)


def spread(show: Callable[[float], str], mean: float, deviation: float | None) -> str:
    """A mean with its standard deviation, if it has one."""
    return show(mean) if deviation is None else f"{show(mean)} ± {show(deviation)}"


def signed(show: Callable[[float], str], value: float) -> str:
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"


@dataclass(frozen=True)
class Sheet:
    """A table, and the notes needed to read it. A row may hold plain strings, which are cells without a value."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""
    reading: str = ""  # how to read all tables of this kind
    dispensable: Sequence[str] = ()  # columns that a narrow terminal leaves out first

    def __post_init__(self) -> None:
        """Make every text printable: some come from records, and nothing in them may control a terminal or a page."""
        for name in ("title", "note", "reading"):
            object.__setattr__(self, name, printable(getattr(self, name), lines=name != "title"))
        object.__setattr__(self, "columns", [printable(column) for column in self.columns])
        cells = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        object.__setattr__(self, "rows", [[replace(cell, text=printable(cell.text)) for cell in row] for row in cells])

    @property
    def text_columns(self) -> list[int]:
        """The columns of text, not of numbers: the first, and those in which no cell has a value."""
        columns = [[row[place] for row in self.rows if row[place].text] for place in range(len(self.columns))]
        return [n for n, cells in enumerate(columns) if not n or (cells and all(cell.value is None for cell in cells))]

    def show(self, console: Console) -> None:
        table = tables.table(*self.columns, title=self.title, left=self.text_columns)
        for row in self.rows:
            table.add_row(*(cell.text for cell in row))
        tables.show(table, console, dispensable=self.dispensable)
        if self.notes:
            say(f"{self.notes}\n", console, lines=True)

    @property
    def notes(self) -> str:
        return f"{self.note} {self.reading}".strip()

    def markdown(self) -> str:
        rule = [":--" if place in self.text_columns else "--:" for place in range(len(self.columns))]
        texts = [[cell.text for cell in row] for row in self.rows]
        lines = [" | ".join(map(in_cell, row)) for row in (self.columns, rule, *texts)]
        note = [in_markdown(self.notes), ""] if self.notes else []
        return "\n".join([f"## {in_markdown(self.title)}", "", *(f"| {line} |" for line in lines), "", *note])


def in_cell(words: str) -> str:
    """Text for a cell of a Markdown table, with the characters that would end the cell escaped."""
    return in_markdown(words).replace("\\", r"\\").replace("|", r"\|")


def document(title: str, sheets: Sequence[Sheet], runs: Sequence[Measured]) -> str:
    """All sheets as one Markdown page, with the runs they were made from."""
    sources = [
        in_markdown(
            f"- {run.label}: `{run.name.replace('`', chr(39))}`, phase {run.phase}, {run.timed_steps} timed steps, "
            f"{'; '.join(provenance.of([run.record]))}"
        )
        for run in runs
    ]
    return "\n".join([f"# {title}", "", *(sheet.markdown() for sheet in sheets), "## Measured runs", "", *sources, ""])


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: digits(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def digits(value: Any) -> Any:
    """A number rounded to ten digits, as the last digits of a sum differ between machines; text made printable."""
    if isinstance(value, str):
        return printable(value)
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.10g}")


def write(out: Path, texts: Mapping[str, str], console: Console) -> None:
    """Write each text to `out` plus its ending, and print the path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, text in texts.items():
        path = out.with_name(out.name + ending)
        files.replace_file(path, text)
        say_written(path, console)


def say_written(path: Path, console: Console) -> None:
    say(f"written: {path}", console)
