"""The paper's tables beside ours: records in; Markdown, CSV and a page out, the same bytes for the same records."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench import table
from pufferfish_bench.errors import InputError
from pufferfish_bench.report import outcome, output, provenance, verdicts
from pufferfish_bench.report.numbers import PaperNumber, paper_numbers
from pufferfish_bench.report.outcome import Claim, Figure, Outcome
from pufferfish_bench.report.output import Sheet
from pufferfish_bench.speech import VERSION, spoken_errors
from pufferfish_bench.visible import in_markdown

COLUMNS = ("cell", "quantity", "paper", "ours", "seeds", "difference", "verdict")
RELATION_COLUMNS = ("the paper's claim", "quantity", "paper", "ours", "p (Welch)", "seeds", "verdict")
READING = (
    "Mean ± standard deviation over seeds. Within 2 sigma: of a single run, the paper's spread and ours together. A profile "
    "other than `paper` is the paper in miniature: what it trains is not comparable, its relations are what it can show. "
    "What is counted and not trained is of the paper's nets in full; what another profile trains is mostly narrower, as its "
    "records say. A record does not know what else its machine was doing: times are as they came."
)
RELATIONS_READING = (
    "Two-sided Welch test at 5 %, each claim on its own. In `paper` and `ours`: of times, so many times as fast; of all "
    'else, the difference. A claim with "to" grants the first that much: the margin is ours.'
)


def spread(show: Any, mean: float, deviation: float | None) -> str:
    return show(mean) if deviation is None else f"{show(mean)} ± {show(deviation)}"


def as_in_paper(show: Any, paper: PaperNumber) -> str:
    """With its spread, or with the formula that it comes from."""
    formula = f": {paper.formula.replace('**', '^')}" if paper.formula else ""  # Markdown takes ** for bold
    return spread(show, paper.mean, paper.deviation) + formula


def signed(show: Any, value: float) -> str:
    return f"{'-' if value < 0 else '+'}{show(abs(value))}"


def figure_words(figure: Figure) -> list[str]:
    """A row of the table of figures."""
    show, paper, ours = figure.quantity.show, figure.paper, figure.ours
    return [
        figure.cell.label,
        figure.quantity.label,
        as_in_paper(show, paper) if paper else "",
        spread(show, ours.mean, ours.deviation) if ours else "",
        str(len(ours.values)) if ours and not figure.cell.counted else "",
        "0" if figure.verdict == verdicts.EQUAL else signed(show, figure.difference) if figure.difference is not None else "",
        figure.verdict,
    ]


def claim_words(claim: Claim) -> list[str]:
    """A row of the table of relations."""
    judgement, show = (
        claim.judgement,
        (lambda value: f"{value:.2f}x") if claim.quantity.is_time else partial(signed, claim.quantity.show),
    )
    return [
        claim.relation.claim,
        claim.quantity.label,
        show(claim.paper) if claim.paper is not None else "",
        show(claim.ours) if claim.ours is not None else "",
        f"{judgement.p:.2g}" if judgement.p is not None else "",
        " and ".join(map(str, judgement.seeds)),
        judgement.verdict,
    ]


def number(name: str) -> str:
    """table4 as people say it: Table 4; figure3a: Figure 3a."""
    kind = name.rstrip("0123456789abc")
    return f"{kind.capitalize()} {name.removeprefix(kind)}"


def sheets(found: Outcome) -> list[Sheet]:
    """The figures of a table, and what the paper claims of them."""
    title = f"{number(found.table.name)}: {found.table.title}"
    figures = [figure_words(figure) for figure in found.figures]
    shown = [Sheet(title, COLUMNS, figures, found.table.note, READING, ("seeds", "difference"))]
    if found.claims:
        judged = [claim_words(claim) for claim in found.claims]
        shown.append(Sheet("Relations", RELATION_COLUMNS, judged, "", RELATIONS_READING, ("seeds", "p (Welch)", "quantity")))
    return shown


def markdown(found: Outcome) -> str:
    return "\n".join([*(sheet.markdown() for sheet in sheets(found)), in_markdown(provenance.sentence(found.provenance)), ""])


def claims(there: Sequence[Outcome]) -> Sheet:
    """What the paper claims, in all tables and figures that were run, on one sheet."""
    judged = [
        [number(found.table.name), *claim_words(claim)]
        for found in there
        for claim in found.claims
        if claim.judgement.verdict != verdicts.NOT_RUN
    ]
    sources = [f"{number(found.table.name)}: {'; '.join(found.provenance)}" for found in there if found.claims]
    note = f"From the records. {'. '.join(sources)}."
    return Sheet("What the paper claims", ("table", *RELATION_COLUMNS), judged, note, RELATIONS_READING)


def rows(found: Outcome) -> list[dict[str, Any]]:
    """All figures in full, for programs."""
    return [
        {
            "table": found.table.name, "profile": found.table.profile, "cell": figure.cell.name, "quantity": figure.name,
            "paper": figure.paper and figure.paper.mean, "paper_deviation": figure.paper and figure.paper.deviation,
            "ours": figure.ours and figure.ours.mean, "ours_deviation": figure.ours and figure.ours.deviation,
            "seeds": len(figure.ours.values) if figure.ours else 0, "difference": figure.difference, "verdict": figure.verdict,
        }
        for figure in found.figures
    ]  # fmt: skip


def relation_rows(found: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "table": found.table.name, "profile": found.table.profile, "claim": claim.relation.claim,
            "quantity": claim.relation.quantity, "of": claim.relation.of, "is": claim.relation.direction,
            "than": claim.relation.than,
            "margin": claim.relation.margin, "margin_is_share": claim.relation.margin_is_share,
            "paper": claim.paper, "ours": claim.ours, "p": claim.judgement.p,
            "seeds_of": claim.judgement.seeds[0], "seeds_than": claim.judgement.seeds[1], "verdict": claim.judgement.verdict,
        }
        for claim in found.claims
    ]  # fmt: skip


def place(found: Outcome, results: Path) -> Path:
    """Where the files of a table or figure are, but for their endings."""
    return results / ("figures" if found.table.name.startswith("figure") else "tables") / found.table.profile / found.table.name


def write(found: Outcome, out: Path, console: Console) -> None:
    """The words and numbers of one table or figure."""
    texts = {".md": markdown(found), ".csv": output.csv_text(rows(found))}
    if found.claims:
        texts["-relations.csv"] = output.csv_text(relation_rows(found))
    output.write(out, texts, console)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="pufferfish-report", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="table4, figure5, ... (default: all that have records)")
    parser.add_argument("--profile", default="cpu", help="of the runs: paper, cpu or smoke (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER",
        help="where records/ is, and tables/, figures/ and the page are written (default: %(default)s)",
    )  # fmt: skip
    given = parser.parse_args(words)
    console = Console()
    with spoken_errors():
        numbers = paper_numbers()

        def read(name: str) -> Outcome:
            return outcome.read(table.read(name, given.profile), given.results / "records", numbers)

        asked = [read(name) for name in given.tables]
        there = [found for found in map(read, table.names()) if any(found.records.values())]
        if not there:
            folder = given.results / "records" / given.profile
            raise InputError(f"there are no records in {folder}: make table4 PROFILE={given.profile} makes some")
        from pufferfish_bench.report import page, pictures  # seconds of imports that a refusal does not need

        drawn = {}
        for found in there:
            out = place(found, given.results)
            write(found, out, console)
            drawn[found.table.name] = [
                made.with_name(made.name + ".svg").read_bytes() for made in pictures.draw(found, out, console)
            ]
        judged = claims(there)
        parts = [(number(found.table.name), sheets(found), found) for found in there]
        text = page.page(judged, parts, drawn, given.results)
        if judged.rows:
            output.write(given.results / "tables" / given.profile / "claims", {".md": judged.markdown()}, console)
        output.write(given.results / f"report-{given.profile}", {".html": text}, console)
        for found in asked:
            for sheet in sheets(found):
                sheet.show(console)


def run() -> None:
    """The command pufferfish-report."""
    with spoken_errors():
        main(sys.argv[1:])


if __name__ == "__main__":
    run()
