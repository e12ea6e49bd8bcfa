"""The paper's tables beside ours: from records to Markdown, CSV and a page; the same records give the same bytes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import in_markdown
from pufferfish_bench.paper import outcome, tables, verdicts
from pufferfish_bench.paper.gates import Finding
from pufferfish_bench.paper.numbers import PaperNumber, paper_numbers
from pufferfish_bench.paper.outcome import Figure, Outcome
from pufferfish_bench.records import machine_load, provenance
from pufferfish_bench.report import bandwidth_sheets, claim_sheets, gap_sheets, lines, output
from pufferfish_bench.report.output import EMPTY, Cell, Sheet, signed, spread

COLUMNS = ("cell", "quantity", "paper", "ours", "seeds", "difference", "verdict")
GATE_COLUMNS = ("claims about", "gate", "measured", "needed", "holds")
GATES_READING = "A claim about quality is tested only if the gates of its model hold. Otherwise the runs say nothing about it."
COMPANY_NOTE = (
    "Times measured beside other processes: during at least one of the runs, others used more than "
    f"{machine_load.COMPANY:g} cores on average."
)
READING = (
    "Mean ± standard deviation over seeds. Sigma is that of a single run, combined from the paper's spread and ours. A profile "
    "other than `paper` is a small version of the paper's experiments: its results are not comparable with the paper's numbers, "
    "but its relations can be tested. Parameters and MACs that are counted without training are those of the paper's full-size "
    "models; models trained under another profile are mostly narrower, as their records say. Times are wall-clock times on a "
    "machine that may have had other load."
)


def as_in_paper(show: Any, paper: PaperNumber) -> str:
    """A number of the paper with its spread, or with the formula that it comes from."""
    formula = f": {paper.formula.replace('**', '^')}" if paper.formula else ""  # Markdown takes ** for bold
    return spread(show, paper.mean, paper.deviation) + formula


def figure_cells(figure: Figure) -> list[Cell | str]:
    """A row of the table of figures."""
    show, paper, ours = figure.quantity.show, figure.paper, figure.ours
    return [
        figure.cell.label,
        figure.quantity.label,
        Cell(as_in_paper(show, paper), paper.mean) if paper else EMPTY,
        Cell(spread(show, ours.mean, ours.deviation), ours.mean) if ours else EMPTY,
        output.number(len(ours.values) if ours and figure.cell.has_seeds else None, str),
        Cell("0", 0.0) if figure.verdict == verdicts.EQUAL else output.number(figure.difference, partial(signed, show)),
        figure.full_verdict,
    ]


def gate_cells(name: str, finding: Finding) -> list[str]:
    """A row of the table of gates."""
    holds = f"no: {finding.failure}" if finding.failure else "yes"
    return [name.replace("_", " "), finding.gate, finding.measured, finding.needed, holds]


def unequal_note(found: Outcome) -> str:
    """Names the runs whose ranks ended with different weights, if there are any."""
    runs = [record for records in found.records.values() for record in records if record.unequal_ranks]
    names = ", ".join("/".join(record.folder.parts[-2:]) for record in runs)
    return f"Results of rank 0, because other ranks ended with other weights: {names}." if runs else ""


def sheets(found: Outcome) -> list[Sheet]:
    """The figures of a table, and the paper's claims about them; or its lines, if it describes a model or recipe."""
    title = f"{claim_sheets.number(found.table.name)}: {found.table.title}"
    if found.comparisons:
        return [lines.sheet(title, found)]
    figures = [figure_cells(figure) for figure in found.figures]
    marked = any(figure.verdict == verdicts.BESIDE_OTHERS for figure in found.figures)
    note = " ".join(filter(None, (found.table.note, COMPANY_NOTE * marked, unequal_note(found))))
    shown = [Sheet(title, COLUMNS, figures, note, READING, ("seeds", "difference"))]
    if found.claims:
        shown.append(claim_sheets.of_table(found))
    rows_of_gates = [gate_cells(name, finding) for name, findings in found.findings.items() for finding in findings]
    if found.gaps:
        shown.append(gap_sheets.sheet(found))
    if rows_of_gates:
        shown.append(Sheet("Gates", GATE_COLUMNS, rows_of_gates, "", GATES_READING, ("needed", "claims about")))
    return [*shown, *bandwidth_sheets.sheets(found)]


def markdown(found: Outcome) -> str:
    return "\n".join([*(sheet.markdown() for sheet in sheets(found)), in_markdown(provenance.sentence(found.provenance)), ""])


def rows(found: Outcome) -> list[dict[str, Any]]:
    """All figures with full precision, for programs."""
    return [
        {
            "table": found.table.name, "profile": found.table.profile, "cell": figure.cell.name, "quantity": figure.name,
            "paper": figure.paper and figure.paper.mean, "paper_deviation": figure.paper and figure.paper.deviation,
            "ours": figure.ours and figure.ours.mean, "ours_deviation": figure.ours and figure.ours.deviation,
            "seeds": len(figure.ours.values) if figure.ours else 0, "difference": figure.difference,
            "verdict": figure.full_verdict,
        }
        for figure in found.figures
    ]  # fmt: skip


def place(found: Outcome, results: Path) -> Path:
    """The path of the files of a table or figure, without their endings."""
    return results / ("figures" if found.table.name.startswith("figure") else "tables") / found.table.profile / found.table.name


def write(found: Outcome, out: Path, console: Console) -> None:
    """Write one table or figure as Markdown and CSV."""
    texts = {".md": markdown(found), ".csv": output.csv_text(lines.rows(found) or rows(found))}
    if found.claims:
        texts["-relations.csv"] = output.csv_text(claim_sheets.rows(found))
    if found.gaps:
        texts["-gaps.csv"] = output.csv_text(gap_sheets.rows(found))
    output.write(out, texts, console)


def read_outcomes(profile: str, results: Path) -> list[Outcome]:
    """The outcomes of the paper's tables and figures, then those of the user's own.

    p values are corrected for the paper's claims and for the user's own apart: own tables do not change the paper's verdicts.
    """
    numbers, papers = paper_numbers(), tables.papers()
    own = [name for name in tables.names() if name not in papers]
    return [
        found
        for group in (papers, own)
        for found in outcome.corrected([outcome.read(tables.read(name, profile), results / "records", numbers) for name in group])
    ]


def write_report(names: Sequence[str], *, profile: str, results: Path, console: Console) -> None:
    """Write the files of every table and figure that has records, and the page; print those in `names`."""
    for name in names:
        tables.read(name, profile)  # refuses an unknown name before anything is read
    outcomes = read_outcomes(profile, results)
    there = [found for found in outcomes if any(found.records.values())]
    if not there:
        folder = results / "records" / profile
        raise InputError(f"there are no records in {folder}; run some first, for example: make table4 PROFILE={profile}")
    from pufferfish_bench.report import headlines, page, pictures  # seconds of imports that an error message does not need

    drawn = {}
    for found in there:
        out = place(found, results)
        write(found, out, console)
        drawn[found.table.name] = pictures.draw(found, out, console)
    all_claims = claim_sheets.of_report(outcomes)
    openings = headlines.draw(outcomes, results / "figures" / profile, console)
    text = page.page(all_claims, openings, [(sheets(found), found) for found in there], drawn, results)
    output.write(results / "tables" / profile / "claims", {".md": all_claims.markdown()}, console)
    output.write(results / f"report-{profile}", {".html": text}, console)
    by_name = {found.table.name: found for found in outcomes}
    for name in dict.fromkeys(names):
        for sheet in sheets(by_name[name]):
            sheet.show(console)
