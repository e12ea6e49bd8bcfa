"""Tables and pictures of the page as HTML: cells with what they are sorted by, and names for readers who cannot see them."""

import re
import string
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from pufferfish_bench.paper import verdicts
from pufferfish_bench.records.files import RUN
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.charts import Picture
from pufferfish_bench.report.output import Cell, Sheet, digits

IN_DATA = "".join(set(string.printable) - set(string.whitespace) - set("%#<>'")) + " "  # as they are, between single quotes
COLOURS = {
    **dict.fromkeys(
        (verdicts.HOLDS, verdicts.EQUAL, verdicts.EQUAL_ROUNDED, verdicts.OF_THAT_ORDER, verdicts.WITHIN, verdicts.BETTER), "good"
    ),
    **dict.fromkeys((verdicts.WORSE, verdicts.OPPOSITE, verdicts.DIFFERENT), "bad"),
}


def table(sheet: Sheet, caption: str, beside: Sequence[str] | None = None, links: Mapping[str, str] | None = None) -> str:
    """A sheet as HTML; `beside` is put after the first cell of each row, and a cell that is a key of `links` becomes a link.

    The first cell of a row is its heading. The caption is for screen readers: on the page a heading stands above the table.
    """
    kinds = ["words" if place in sheet.text_columns else "" for place in range(len(sheet.columns))]
    head = "".join(
        f'<th scope="col" data-label="{escape(name)}"{classes(kind)}><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(sheet.columns, kinds, strict=True)
    )
    lines = []
    for (first, *rest), extra in zip(sheet.rows, beside or [""] * len(sheet.rows), strict=True):
        cells = "".join(table_cell(*column, links or {}) for column in zip(sheet.columns[1:], rest, kinds[1:], strict=True))
        heading = f'<th scope="row" data-value="{sort_key(first)}" class="words">{escape(first.text)}{extra}</th>'
        lines.append(f"<tr>{heading}{cells}</tr>\n")
    return (
        f'<div class="scroll"><table>\n<caption class="unseen">{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def table_cell(column: str, cell: Cell, kind: str = "", links: Mapping[str, str] | None = None) -> str:
    """A cell with the name of its column, which a phone shows beside it, and the key that it is sorted by."""
    looks, target = classes(kind, colour(cell.text)), (links or {}).get(cell.text)
    content = f'<a href="{escape(target)}">{escape(cell.text)}</a>' if target else escape(cell.text)
    return f'<td data-label="{escape(column)}" data-value="{sort_key(cell)}"{looks}>{content}</td>'


def colour(text: str) -> str:
    """The colour class of a verdict; one over bandwidth has a colour if it is the same at all rates."""
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
        links.append(f'<a href="{escape(path)}" aria-label="record of seed {seed}">{seed}</a>')
    return f" <small>{' '.join(links)}</small>" if links else ""


def image(picture: Picture, alt: str, results: Path) -> str:
    """A picture that is part of the page, and a link to its file, which may be enlarged."""
    address = quote(picture.file(".svg").relative_to(results).as_posix())
    data = data_uri(picture.file(".svg").read_bytes())
    return f'<div class="plot"><a href="{address}"><img alt="{escape(alt)}" src=\'{data}\'></a></div>\n'


def data_uri(picture: bytes) -> str:
    """An SVG as the address of a picture, for an attribute in single quotes; a third smaller than in base64."""
    return "data:image/svg+xml;charset=utf-8," + quote(re.sub(r"\s+", " ", picture.decode()), safe=IN_DATA)


def prose(words: str, kind: str = "note") -> str:
    """A paragraph, in which `names` are marked; nothing if there are no words."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))
    return f'<p class="{kind}">{marked}</p>\n' if words else ""
