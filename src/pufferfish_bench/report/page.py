"""All tables on one HTML page that needs nothing but itself: readable on a phone and in the dark, tables sortable by a click."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pufferfish_bench.records import RUN
from pufferfish_bench.report import provenance, verdicts
from pufferfish_bench.report.outcome import Outcome, Record
from pufferfish_bench.report.output import Sheet
from pufferfish_bench.report.page_style import SCRIPT, STYLE

COLOURS = {
    **dict.fromkeys((verdicts.HOLDS, verdicts.EQUAL, verdicts.OF_THAT_ORDER, verdicts.WITHIN, verdicts.BETTER), "good"),
    **dict.fromkeys((verdicts.WORSE, verdicts.OPPOSITE, verdicts.DIFFERENT), "bad"),
}
# 18.0 M | 1,234.5 ± 0.2 | 1.64x | +0.95 | 1e-05 | 262,144: m * n
NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?) ?(x|[MG]|)(?:(?: ±|:) .*)?")
UNITS = {"": 1.0, "x": 1.0, "M": 1e6, "G": 1e9}


def page(
    claims: Sheet,
    parts: Sequence[tuple[str, Sequence[Sheet], Outcome]],
    pictures: Mapping[str, Sequence[bytes]],
    results: Path,
) -> str:
    """The page for the results folder; links to records are relative to it. How to read the tables is said once, above them.

    What is claimed comes first, if anything is.
    """
    profile = parts[0][2].table.profile
    notes = dict.fromkeys(sheet.reading.replace("`", "") for _, sheets, _ in parts for sheet in sheets if sheet.reading)
    names = ({"claims": "Claims"} if claims.rows else {}) | {found.table.name: number for number, _, found in parts}
    links = "".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in names.items())
    judged = (
        f'<section id="claims">\n<h2>{escape(claims.title)}</h2>\n{table(claims)}'
        f'<p class="provenance">{escape(claims.note)}</p>\n</section>\n'
    )
    sections = "".join(section(sheets, found, pictures[found.table.name], results) for _, sheets, found in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Pufferfish, profile {profile}</title>\n<style>{STYLE}</style>\n"
        f"<h1>Pufferfish: the paper and ours</h1>\n<p>Profile <b>{profile}</b>. The name of a column sorts by it, once more "
        "the other way round, a third time as it was; the numbers beside a cell are its seeds and lead to their records.</p>\n"
        + "".join(f'<p class="note">{escape(note)}</p>\n' for note in notes)
        + f"<nav>{links}</nav>\n{judged if claims.rows else ''}{sections}<script>{SCRIPT}</script>\n</html>\n"
    )


def section(sheets: Sequence[Sheet], found: Outcome, pictures: Sequence[bytes], results: Path) -> str:
    """One table or figure of the paper: its tables, and its pictures beside them."""
    title, *others = sheets
    beside = [seeds(found.records[figure.cell.name], results) for figure in found.figures]
    tables = [table(title, beside) + (f'<p class="note">{escape(title.note)}</p>\n' if title.note else "")]
    tables += [f"<h3>{escape(sheet.title)}</h3>\n{table(sheet)}" for sheet in others]
    plots = [
        f'<div class="plot"><img alt="{escape(found.table.title)}, picture {place}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"></div>\n'
        for place, picture in enumerate(pictures, start=1)
    ]
    content = f'<div class="tables">{"".join(tables)}</div>\n'
    if plots:  # else the tables have all the width
        content = f'<div class="beside">\n{content}<div class="plots">{"".join(plots)}</div>\n</div>\n'
    return (
        f'<section id="{found.table.name}">\n<h2>{escape(title.title)}</h2>\n{content}'
        f'<p class="provenance">{escape(provenance.sentence(found.provenance))}</p>\n</section>\n'
    )


def table(sheet: Sheet, beside: Sequence[str] | None = None) -> str:
    """A sheet as HTML; `beside` is put beside the first word of each row."""
    kinds = ["words" if place in sheet.of_words else "" for place in range(len(sheet.columns))]
    head = "".join(
        f'<th scope="col" data-label="{escape(name)}"{classes(kind)}><button>{escape(name)}</button></th>'
        for name, kind in zip(sheet.columns, kinds, strict=True)
    )
    lines = []
    for (first, *rest), extra in zip(sheet.rows, beside or [""] * len(sheet.rows), strict=True):
        cells = "".join(cell(*column) for column in zip(sheet.columns[1:], rest, kinds[1:], strict=True))
        lines.append(f'<tr><td data-value="{escape(first)}" class="words">{escape(first)}{extra}</td>{cells}</tr>\n')
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{"".join(lines)}</tbody></table></div>\n'


def cell(column: str, word: str, kind: str = "") -> str:
    """A cell that knows its column, for a phone, and what it is sorted by."""
    value, looks = number(word), classes(kind, COLOURS.get(word, ""))
    return f'<td data-label="{escape(column)}" data-value="{escape(word) if value is None else value}"{looks}>{escape(word)}</td>'


def classes(*names: str) -> str:
    """The names that there are, as an attribute."""
    there = " ".join(filter(None, names))
    return f' class="{there}"' if there else ""


def number(word: str) -> float | None:
    """What a word of a table says in figures, without its spread or formula; None if it says none."""
    found = NUMBER.fullmatch(word)
    return float(found[1].replace(",", "")) * UNITS[found[2]] if found else None


def seeds(records: Sequence[Record], results: Path) -> str:
    """A link to each record of a cell."""
    links = [
        f'<a href="{escape((record.folder / RUN).relative_to(results).as_posix())}" title="seed {record.seed}">{record.seed}</a>'
        for record in records
    ]
    return f" <small>{' '.join(links)}</small>" if links else ""
