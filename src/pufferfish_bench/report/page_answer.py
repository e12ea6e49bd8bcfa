"""The top of the page: how many claims have each verdict, the two pictures that answer, and the claims by verdict."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pufferfish_bench.paper import bandwidth, verdicts
from pufferfish_bench.report.claim_sheets import KINDS, NOT_TESTED, Group, number, place
from pufferfish_bench.report.headlines import Opening
from pufferfish_bench.report.page_tables import colour, image, prose, table

NOT_RUN = "not run"
TITLES = {bandwidth.MIXED: "mixed: it depends on the bandwidth"}  # on the page; other kinds have their own name
LOOKS = {verdicts.HOLDS: "good", verdicts.OPPOSITE: "bad", bandwidth.MIXED: "mixed"}


def summary(groups: Sequence[Group], openings: Sequence[Opening], results: Path) -> str:
    """The section that opens the page."""
    tiles = "".join(tile(kind, [group for group in groups if group.kind == kind]) for kind in KINDS)
    pictures = "".join(opening(one, results) for one in openings)
    return (
        f'<section id="summary">\n<h2>The answer in short</h2>\n<ul class="tiles">\n{tiles}</ul>\n'
        f'<div class="openings">\n{pictures}</div>\n</section>\n'
    )


def tile(kind: str, groups: Sequence[Group]) -> str:
    """The number of claims with a verdict, as a link to them; plain text if there is none."""
    count, not_run = sum(len(group.sheet.rows) for group in groups), sum(len(g.sheet.rows) for g in groups if g.not_run)
    name, _, more = TITLES.get(kind, kind).partition(": ")
    if kind == NOT_TESTED and not_run:
        more = "none of them has been run" if not_run == count else f"{not_run} of them have not been run"
    words = f"<b>{count}</b> <span>{escape(name)}</span>{f' <small>{escape(more)}</small>' if more and count else ''}"
    content = f'<a href="#{groups[0].place}">{words}</a>' if groups else f"<div>{words}</div>"
    return f'<li class="{LOOKS.get(kind, "open")}{"" if count else " none"}">{content}</li>\n'


def opening(found: Opening, results: Path) -> str:
    """A picture with its sentence and the verdicts on the claims about it."""
    title = f"<h3>{escape(found.title)}</h3>\n"
    if not found.picture:
        return f'<div class="opening waiting">\n{title}{prose(found.sentence, "caption")}</div>\n'
    drawn = image(found.picture, f"{found.picture.shows}. The text beside it has the ends of the lines.", results)
    claims = "".join(f"<li>{escape(one.relation.label)}: {verdict(one.judgement.verdict)}</li>\n" for one in found.claims)
    listed = f'<ul class="verdicts">\n{claims}</ul>\n' if claims else ""
    name = found.source.table.name
    source = f'<p class="note"><a href="#{escape(place(name))}">All of {escape(number(name))}</a></p>\n'
    return (
        f'<div class="opening">\n{title}<div class="shown">\n{drawn}'
        f"<div>{prose(found.sentence, 'caption')}{listed}{source}</div>\n</div>\n</div>\n"
    )


def verdict(words: str) -> str:
    looks = colour(words)
    return f'<span class="{looks}">{escape(words)}</span>' if looks else f"<span>{escape(words)}</span>"


def claims(groups: Sequence[Group], title: str, readings: str, places: Mapping[str, str]) -> str:
    """The claims by verdict; those that were not run are collapsed. `places` has the address of each table on the page."""
    content = "".join(claims_of(group, places) for group in groups)
    return f'<section id="claims">\n<h2>{escape(title)}</h2>\n{readings}{content}</section>\n'


def claims_of(group: Group, places: Mapping[str, str]) -> str:
    """The claims with one kind of verdict."""
    count, name = len(group.sheet.rows), NOT_RUN if group.not_run else TITLES.get(group.kind, group.kind)
    heading = f"{name[0].upper()}{name[1:]}: {count} claim{'s' * (count != 1)}"
    shown = table(group.sheet, f"Claims, {name}", links=places)
    if group.not_run:
        return f'<details id="{group.place}" class="sheet">\n<summary><h3>{escape(heading)}</h3></summary>\n{shown}</details>\n'
    return f'<div id="{group.place}" class="sheet">\n<h3>{escape(heading)}</h3>\n{shown}</div>\n'
