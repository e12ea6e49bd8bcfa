"""All tables on one HTML page that needs nothing but itself: readable on a phone and in the dark, tables sortable by a click."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pufferfish_bench.records import RUN
from pufferfish_bench.report.outcome import Outcome, Record
from pufferfish_bench.report.output import Sheet

STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --faint: #5b6570; --good: #00694b; --bad: #a83c00;
  --back: #fff; --text: #1b1f23 }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a4048; --faint: #9aa5b1; --good: #4fd1a5; --bad: #ff9b66; --back: #14171a; --text: #e6e9ec } }
body { margin: 0 auto; padding: 1rem; max-width: 70rem;
  font: 16px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text) }
nav { display: flex; flex-wrap: wrap; gap: .3rem .9rem } a { color: inherit }
section { margin-top: 2.5rem } .scroll { overflow-x: auto } .note, .provenance { color: var(--faint); font-size: .85rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; white-space: nowrap }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right }
th:first-child, td:first-child { text-align: left }
th button { all: unset; cursor: pointer; font-weight: 600 } th button:focus-visible { outline: 2px solid }
th[aria-sort=ascending] button::after { content: " \\25B2" } th[aria-sort=descending] button::after { content: " \\25BC" }
td:last-child { white-space: normal; min-width: 8rem }
@media (max-width: 40rem) { table { font-size: .78rem } th, td { padding: .25rem .4rem } }
.good { color: var(--good) } .bad { color: var(--bad) }
img { max-width: 100%; height: auto; margin-top: 1rem; background: #fff; border-radius: .4rem }
"""
SCRIPT = """
for (const head of document.querySelectorAll("th")) head.querySelector("button").addEventListener("click", () => {
  const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => row.cells[at].textContent, number = text => parseFloat(text.replaceAll(",", ""));
  const order = (a, b) => isNaN(number(a) - number(b)) ? a.localeCompare(b) : number(a) - number(b);
  [...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b))).forEach(row => body.append(row));
});
"""
COLOURS = {
    "holds": "good",
    "equal": "good",
    "within 2 sigma": "good",
    "better": "good",
    "worse": "bad",
    "the opposite": "bad",
    "differs": "bad",
}


def page(parts: Sequence[tuple[str, Sequence[Sheet], Outcome]], pictures: Mapping[str, Sequence[bytes]], results: Path) -> str:
    """The page for the results folder; links to records are relative to it."""
    profile = parts[0][2].table.profile
    links = "".join(f'<a href="#{found.table.name}">{escape(number)}</a>' for number, _, found in parts)
    sections = "".join(section(sheets, found, pictures[found.table.name], results) for _, sheets, found in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Pufferfish, profile {profile}</title>\n<style>{STYLE}</style>\n"
        f"<h1>Pufferfish: the paper and ours</h1>\n<p>Profile <b>{profile}</b>. A click on a column sorts by it; "
        f"the seeds beside a cell are its records.</p>\n<nav>{links}</nav>\n{sections}<script>{SCRIPT}</script>\n</html>\n"
    )


def section(sheets: Sequence[Sheet], found: Outcome, pictures: Sequence[bytes], results: Path) -> str:
    """One table or figure of the paper."""
    title, *others = sheets
    cells = [figure.cell.name for figure in found.figures]
    words = [f'<section id="{found.table.name}">\n<h2>{escape(title.title)}</h2>\n']
    words.append(table(title, [seeds(found.records[cell], results) for cell in cells]))
    words += [f"<h3>{escape(sheet.title)}</h3>\n{table(sheet, [''] * len(sheet.rows))}" for sheet in others]
    for picture in pictures:
        data = base64.b64encode(picture).decode()
        words.append(f'<img alt="{escape(found.table.title)}" src="data:image/svg+xml;base64,{data}">\n')
    return "".join([*words, f'<p class="provenance">From the records: {escape("; ".join(found.provenance))}.</p>\n</section>\n'])


def table(sheet: Sheet, beside: Sequence[str]) -> str:
    """A sheet as HTML; `beside` is put beside the first word of each row."""
    head = "".join(f'<th scope="col"><button>{escape(column)}</button></th>' for column in sheet.columns)
    lines = []
    for row, extra in zip(sheet.rows, beside, strict=True):
        first, *rest = row
        cells = "".join(f"<td{mark(word)}>{escape(word)}</td>" for word in rest)
        lines.append(f"<tr><td>{escape(first)}{extra}</td>{cells}</tr>\n")
    note = f'<p class="note">{escape(sheet.note.replace("`", ""))}</p>\n' if sheet.note else ""
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{"".join(lines)}</tbody></table></div>\n{note}'


def mark(word: str) -> str:
    return f' class="{COLOURS[word]}"' if word in COLOURS else ""


def seeds(records: Sequence[Record], results: Path) -> str:
    """A link to each record of a cell."""
    links = [f'<a href="{escape((record.folder / RUN).relative_to(results).as_posix())}">{record.seed}</a>' for record in records]
    return f" <small>{' '.join(links)}</small>" if links else ""
