"""The paper's lines about a model or recipe beside ours, with a verdict for each: a sheet, and rows for programs."""

from collections import Counter
from typing import Any

from pufferfish_bench.paper import specifications
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.specifications import Comparison
from pufferfish_bench.report.output import Sheet

COLUMNS = ("cell", "in the paper", "our name", "paper", "ours", "verdict")
READING = (
    "Nothing is trained: the model or recipe of the paper's profile is built and compared line by line, the same in every "
    "profile. Shapes have the inputs first, as in the paper. A misprint is a line that the paper itself contradicts elsewhere, "
    "and where ours is what it should be; it does not count as a difference."
)


def sheet(title: str, found: Outcome) -> Sheet:
    """A table of lines; its note says how many have each verdict."""
    count = Counter(comparison.verdict.partition(":")[0].partition(" (")[0] for comparison in found.comparisons)
    counted = ", ".join(f"{number} {words}" for words, number in count.most_common())
    note = f"{len(found.comparisons)} lines: {counted}. {found.table.note}".strip()
    return Sheet(title, COLUMNS, [cells(comparison) for comparison in found.comparisons], note, READING, ("cell", "our name"))


def cells(comparison: Comparison) -> list[str]:
    line = comparison.line
    return [comparison.cell.replace("_", " "), line.name, where(comparison), specifications.show(line.paper), ours(comparison),
            comparison.verdict]  # fmt: skip


def where(comparison: Comparison) -> str:
    """The name of our value; if there are several, their pattern and number."""
    if len(comparison.names) == 1:
        return comparison.names[0]
    return f"{', '.join(comparison.line.ours)} ({len(comparison.names)})" if comparison.line.ours else ""


def ours(comparison: Comparison) -> str:
    return "; ".join(map(specifications.show, comparison.ours))


def rows(found: Outcome) -> list[dict[str, Any]]:
    """All lines, for programs."""
    return [
        {
            "table": found.table.name, "profile": found.table.profile, "cell": comparison.cell, "line": comparison.line.name,
            "our_names": " ".join(comparison.names), "paper": specifications.show(comparison.line.paper),
            "ours": ours(comparison), "verdict": comparison.verdict,
        }
        for comparison in found.comparisons
    ]  # fmt: skip
