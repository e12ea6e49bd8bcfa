"""The report as one self-contained HTML page: the answer, the claims by verdict, then every table with its pictures."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.records import provenance
from pufferfish_bench.report import page_answer, page_tables
from pufferfish_bench.report.charts import Picture
from pufferfish_bench.report.claim_sheets import by_verdict, number, place
from pufferfish_bench.report.headlines import Opening
from pufferfish_bench.report.output import Sheet
from pufferfish_bench.report.page_script import SCRIPT
from pufferfish_bench.report.page_style import STYLE
from pufferfish_bench.report.page_tables import prose

PROFILES = {  # what a reader must know of the runs before the first number
    "paper": "the paper's own settings",
    "cpu": "a small version of the paper's experiments, for a CPU",
    "smoke": "tiny runs that only show that everything works",
}
HINT = (
    "Click the name of a column to sort by it, again for descending order, a third time for the original order. The numbers "
    "beside the first row of a cell are its seeds and link to their records. A picture links to its file."
)
SEARCH = (
    '<search hidden><output for="words"></output><label for="words">Search</label> '
    '<input type="search" id="words" autocomplete="off" placeholder="e.g. powersgd bytes"></search>'
)


def page(
    claims: Sheet,
    openings: Sequence[Opening],
    parts: Sequence[tuple[Sequence[Sheet], Outcome]],
    pictures: Mapping[str, Sequence[Picture]],
    results: Path,
) -> str:
    """The page for the results folder; links to records and pictures are relative to it.

    How to read the tables is explained once, above them.
    """
    profile, groups = parts[0][1].table.profile, by_verdict(claims)
    names = [found.table.name for _, found in parts]
    readings = dict.fromkeys(sheet.reading for sheet in (claims, *(sheet for sheets, _ in parts for sheet in sheets)))
    how = (
        f'<details id="reading">\n<summary>How to read the tables</summary>\n{"".join(map(prose, (HINT, *readings)))}</details>\n'
    )
    sections = "".join(section(sheets, found, pictures[found.table.name], results) for sheets, found in parts)
    of_profile = f": {PROFILES[profile]}" if profile in PROFILES else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Pufferfish, profile {profile}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#claims">Skip to the claims</a>\n'
        f"<header>\n<h1>Pufferfish: the paper and ours</h1>\n<p>{counted(claims)}, each with a verdict from our runs. "
        f"Profile <b>{profile}</b>{escape(of_profile)}.</p>\n</header>\n"
        f'<div class="bar">{contents(names)}{SEARCH}</div>\n<main>\n{page_answer.summary(groups, openings, results)}'
        f"{page_answer.claims(groups, claims.title, how, {number(name): f'#{place(name)}' for name in names})}{sections}</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def counted(claims: Sheet) -> str:
    """How many claims are the paper's, and how many ours."""
    ours = sum(any("(ours)" in (cell if isinstance(cell, str) else cell.text) for cell in row) for row in claims.rows)
    return f"{len(claims.rows) - ours} claims of the Pufferfish paper (MLSys 2021)" + (f" and {ours} of ours" if ours else "")


def contents(names: Sequence[str]) -> str:
    """Links to all parts of the page; tables and figures of the paper by their numbers alone."""
    links = [link("summary", "Summary"), link("claims", "Claims")]
    for kind in ("Table", "Figure"):
        own = [name for name in names if number(name).startswith(f"{kind} ")]
        texts = [(name, number(name).removeprefix(f"{kind} ")) for name in own]
        items = "".join(link(place(name), f'<span class="unseen">{kind} </span>{escape(text)}') for name, text in texts)
        links.append(f'<span class="kind" aria-hidden="true">{kind}s</span>{items}' if own else "")
    links += [link(place(name), escape(number(name))) for name in names if not number(name).startswith(("Table ", "Figure "))]
    return f'<nav aria-label="Parts of this page">{"".join(links)}</nav>\n'


def link(target: str, content: str) -> str:
    return f'<a href="#{target}">{content}</a>'


def section(sheets: Sequence[Sheet], found: Outcome, pictures: Sequence[Picture], results: Path) -> str:
    """One table or figure of the paper: its tables, with the pictures beside them."""
    title, *others = sheets
    name = number(found.table.name)
    cells = [line.cell for line in found.comparisons] or [figure.cell.name for figure in found.figures]
    beside = ["" if cell in cells[:row] else page_tables.seeds(found.records[cell], results) for row, cell in enumerate(cells)]
    tables = [f'<div class="sheet">\n{page_tables.table(title, f"{name}: numbers", beside)}{prose(title.note)}</div>\n']
    for sheet in others:
        shown = page_tables.table(sheet, f"{name}: {sheet.title}")
        tables.append(f'<div class="sheet">\n<h3>{escape(sheet.title)}</h3>\n{shown}{prose(sheet.note)}</div>\n')
    plots = [
        page_tables.image(picture, f"{title.title}: {picture.shows}. The numbers are in the tables of this part.", results)
        for picture in pictures
    ]
    content = f'<div class="tables">{"".join(tables)}</div>\n'
    if plots:  # otherwise the tables use the full width
        content = f'<div class="beside">\n{content}<div class="plots">{"".join(plots)}</div>\n</div>\n'
    return (
        f'<section id="{escape(place(found.table.name))}">\n<h2>{escape(title.title)}</h2>\n{content}'
        f"{prose(provenance.sentence(found.provenance), 'provenance')}</section>\n"
    )
