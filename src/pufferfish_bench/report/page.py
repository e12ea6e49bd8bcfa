"""All tables on one self-contained HTML page: readable on a phone and in dark mode, with tables that sort by a click."""

import re
import string
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from pufferfish_bench.paper import verdicts
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.records import provenance
from pufferfish_bench.records.files import RUN
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.output import Cell, Sheet, digits
from pufferfish_bench.report.page_style import SCRIPT, STYLE

IN_DATA = "".join(set(string.printable) - set(string.whitespace) - set("%#<>'")) + " "  # as they are, between single quotes
COLOURS = {
    **dict.fromkeys(
        (verdicts.HOLDS, verdicts.EQUAL, verdicts.EQUAL_ROUNDED, verdicts.OF_THAT_ORDER, verdicts.WITHIN, verdicts.BETTER), "good"
    ),
    **dict.fromkeys((verdicts.WORSE, verdicts.OPPOSITE, verdicts.DIFFERENT), "bad"),
}


def page(
    claims: Sheet,
    parts: Sequence[tuple[str, Sequence[Sheet], Outcome]],
    pictures: Mapping[str, Sequence[bytes]],
    results: Path,
) -> str:
    """The page for the results folder; links to records are relative to it. How to read the tables is explained once, above them.

    The paper's claims come first.
    """
    profile = parts[0][2].table.profile
    notes = dict.fromkeys(sheet.reading.replace("`", "") for _, sheets, _ in parts for sheet in sheets if sheet.reading)
    names = {"claims": "Claims"} | {found.table.name: number for number, _, found in parts}
    links = "".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in names.items())
    claims_section = (
        f'<section id="claims">\n<h2>{escape(claims.title)}</h2>\n{table(claims)}'
        f'<p class="provenance">{escape(claims.note)}</p>\n</section>\n'
    )
    sections = "".join(section(sheets, found, pictures[found.table.name], results) for _, sheets, found in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Pufferfish, profile {profile}</title>\n<style>{STYLE}</style>\n"
        f"<h1>Pufferfish: the paper and ours</h1>\n<p>Profile <b>{profile}</b>. Click the name of a column to sort "
        "by it, again for descending order, a third time for the original order. The numbers beside the "
        "first row of a cell are its seeds and link to their records.</p>\n"
        + "".join(f'<p class="note">{escape(note)}</p>\n' for note in notes)
        + f"<nav>{links}</nav>\n{claims_section}{sections}<script>{SCRIPT}</script>\n</html>\n"
    )


def section(sheets: Sequence[Sheet], found: Outcome, pictures: Sequence[bytes], results: Path) -> str:
    """One table or figure of the paper: its tables, with the pictures beside them."""
    title, *others = sheets
    cells = [line.cell for line in found.comparisons] or [figure.cell.name for figure in found.figures]
    beside = ["" if cell in cells[:row] else seeds(found.records[cell], results) for row, cell in enumerate(cells)]
    tables = [table(title, beside) + (f'<p class="note">{escape(title.note)}</p>\n' if title.note else "")]
    for sheet in others:
        note = f'<p class="note">{escape(sheet.note)}</p>\n' if sheet.note else ""
        tables.append(f"<h3>{escape(sheet.title)}</h3>\n{table(sheet)}{note}")
    plots = [
        f'<div class="plot"><img alt="{escape(found.table.title)}, picture {place}" src=\'{data_uri(picture)}\'></div>\n'
        for place, picture in enumerate(pictures, start=1)
    ]
    content = f'<div class="tables">{"".join(tables)}</div>\n'
    if plots:  # otherwise the tables use the full width
        content = f'<div class="beside">\n{content}<div class="plots">{"".join(plots)}</div>\n</div>\n'
    return (
        f'<section id="{found.table.name}">\n<h2>{escape(title.title)}</h2>\n{content}'
        f'<p class="provenance">{escape(provenance.sentence(found.provenance))}</p>\n</section>\n'
    )


def data_uri(picture: bytes) -> str:
    """An SVG as the address of a picture, for an attribute in single quotes; a third smaller than in base64."""
    return "data:image/svg+xml;charset=utf-8," + quote(re.sub(r"\s+", " ", picture.decode()), safe=IN_DATA)


def table(sheet: Sheet, beside: Sequence[str] | None = None) -> str:
    """A sheet as HTML; `beside` is put after the first cell of each row."""
    kinds = ["words" if place in sheet.text_columns else "" for place in range(len(sheet.columns))]
    head = "".join(
        f'<th scope="col" data-label="{escape(name)}"{classes(kind)}><button>{escape(name)}</button></th>'
        for name, kind in zip(sheet.columns, kinds, strict=True)
    )
    lines = []
    for (first, *rest), extra in zip(sheet.rows, beside or [""] * len(sheet.rows), strict=True):
        cells = "".join(table_cell(*column) for column in zip(sheet.columns[1:], rest, kinds[1:], strict=True))
        lines.append(f'<tr><td data-value="{sort_key(first)}" class="words">{escape(first.text)}{extra}</td>{cells}</tr>\n')
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{"".join(lines)}</tbody></table></div>\n'


def table_cell(column: str, cell: Cell, kind: str = "") -> str:
    """A cell with the name of its column, which a phone shows beside it, and the key that it is sorted by."""
    looks = classes(kind, colour(cell.text))
    return f'<td data-label="{escape(column)}" data-value="{sort_key(cell)}"{looks}>{escape(cell.text)}</td>'


def colour(text: str) -> str:
    """The colour class of a verdict; one over bandwidth has a colour if it is the same at all rates."""
    text = text.partition(") on ")[0] + ")" * (") on " in text)  # the machine of a time
    kinds = {COLOURS.get(part) or COLOURS.get(part.partition(" (")[0], "") for part in text.split("); ")}
    return kinds.pop() if len(kinds) == 1 else ""


def sort_key(cell: Cell) -> str:
    return escape(cell.text) if cell.value is None else str(digits(float(cell.value)))


def classes(*names: str) -> str:
    """The class attribute with the names that are not empty."""
    there = " ".join(filter(None, names))
    return f' class="{there}"' if there else ""


def seeds(records: Sequence[Record], results: Path) -> str:
    """A link to each record of a cell."""
    links = []
    for record in records:
        seed, path = record.folder.name.removeprefix("seed"), (record.folder / RUN).relative_to(results).as_posix()
        links.append(f'<a href="{escape(path)}" title="seed {seed}">{seed}</a>')
    return f" <small>{' '.join(links)}</small>" if links else ""
