"""How a report reaches its reader: the terminal, Markdown and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench import records
from pufferfish_bench.report import provenance, tables
from pufferfish_bench.report.measured import Measured
from pufferfish_bench.speech import say
from pufferfish_bench.visible import in_markdown, visible


@dataclass(frozen=True)
class Sheet:
    """A table of words, with what must be known to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    reading: str = ""  # how tables of this kind are read
    dispensable: Sequence[str] = ()  # columns that a narrow terminal does without first

    def __post_init__(self) -> None:
        """What a sheet is made of may come from records: whoever shows it, nothing in it steers a terminal or a page."""
        for name in ("title", "note", "reading"):
            object.__setattr__(self, name, visible(getattr(self, name), lines=name != "title"))
        object.__setattr__(self, "columns", [visible(column) for column in self.columns])
        object.__setattr__(self, "rows", [[visible(cell) for cell in row] for row in self.rows])

    @property
    def of_words(self) -> list[int]:
        """The columns that hold words and not numbers: the first, and where all that is said begins with a letter."""
        columns = [[row[place] for row in self.rows if row[place]] for place in range(len(self.columns))]
        return [place for place, said in enumerate(columns) if not place or (said and all(word[0].isalpha() for word in said))]

    def show(self, console: Console) -> None:
        table = tables.table(*self.columns, title=self.title, left=self.of_words)
        for row in self.rows:
            table.add_row(*row)
        tables.show(table, console, dispensable=self.dispensable)
        if self.words:
            say(f"{self.words}\n", console, lines=True)

    @property
    def words(self) -> str:
        return f"{self.note} {self.reading}".strip()

    def markdown(self) -> str:
        rule = [":--" if place in self.of_words else "--:" for place in range(len(self.columns))]
        lines = [" | ".join(map(in_cell, row)) for row in (self.columns, rule, *self.rows)]
        note = [in_markdown(self.words), ""] if self.words else []
        return "\n".join([f"## {in_markdown(self.title)}", "", *(f"| {line} |" for line in lines), "", *note])


def in_cell(words: str) -> str:
    """Words as a cell of a Markdown table: it does not end before they do."""
    return in_markdown(words).replace("\\", r"\\").replace("|", r"\|")


def document(title: str, sheets: Sequence[Sheet], runs: Sequence[Measured]) -> str:
    """All sheets as one Markdown page that says what it was made of."""
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
    """A number to ten digits: the last ones of a sum or a logarithm are not the same on every machine. Words as shown."""
    if isinstance(value, str):
        return visible(value)
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.10g}")


def write(out: Path, texts: Mapping[str, str], console: Console) -> None:
    """Put each text under `out` with its ending, and say where."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, text in texts.items():
        path = out.with_name(out.name + ending)
        records.replace_file(path, text)
        say_written(path, console)


def say_written(path: Path, console: Console) -> None:
    say(f"written: {path}", console)
