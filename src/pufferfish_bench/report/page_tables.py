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
from pufferfish_bench.report.svg import smaller

IN_DATA = "".join(set(string.printable) - set(string.whitespace) - set("%#'")) + " "  # as they are, between single quotes
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
    in_words = [place in sheet.text_columns for place in range(len(sheet.columns))]
    head = "".join(
        f'<th scope="col"{classes("words" * words)}><button type="button">{escape(name)}</button></th>'
        for name, words in zip(sheet.columns, in_words, strict=True)
    )
    lines = []
    for (first, *rest), extra in zip(sheet.rows, beside or [""] * len(sheet.rows), strict=True):
        cells = "".join(table_cell(cell, words, links or {}) for cell, words in zip(rest, in_words[1:], strict=True))
        key = f' data-key="{sort_key(first)}"' if extra or first.value is not None else ""
        lines.append(f'<tr><th scope="row"{key}>{escape(first.text)}{extra}</th>{cells}</tr>\n')
    return (
        f'<div class="scroll"><table>\n<caption class="unseen">{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def table_cell(cell: Cell, in_words: bool = True, links: Mapping[str, str] | None = None) -> str:
    """A cell with the key that it is sorted by, if that is not its text; a text among numbers is aligned like them."""
    key = "" if cell.value is None else f' data-key="{sort_key(cell)}"'
    among_numbers = "number" if cell.value is None and cell.text and not in_words else ""
    target = (links or {}).get(cell.text)
    content = f'<a href="{escape(target)}">{escape(cell.text)}</a>' if target else escape(cell.text)
    return f"<td{key}{classes(among_numbers, colour(cell.text))}>{content}</td>"


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
        links.append(f'<a href="{escape(path)}" aria-label="record of seed {seed}">{seed}</a>')
    return f" <small>{' '.join(links)}</small>" if links else ""


def image(picture: Picture, alt: str, results: Path) -> str:
    """A picture that is part of the page, and a link to its file, which may be enlarged."""
    address = quote(picture.file(".svg").relative_to(results).as_posix())
    data = data_uri(picture.file(".svg").read_bytes())
    link_to_file = f'<a href="{address}"><img alt="{escape(alt)}" src=\'{data}\'></a>'
    return f'<div class="plot" tabindex="0" role="group" aria-label="{escape(alt)}">{link_to_file}</div>\n'


def data_uri(picture: bytes) -> str:
    """An SVG as the address of a picture, for an attribute in single quotes; half as long as in base64."""
    return "data:image/svg+xml;charset=utf-8," + quote(smaller(picture.decode()), safe=IN_DATA)


def prose(words: str, kind: str = "note") -> str:
    """A paragraph, in which `names` are marked; nothing if there are no words."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(words))
    return f'<p class="{kind}">{marked}</p>\n' if words else ""
