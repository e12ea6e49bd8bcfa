"""The paper's claims as tables: those of one table, all of a report, and all by verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pufferfish_bench.paper import bandwidth, verdicts
from pufferfish_bench.paper.outcome import Claim, Outcome
from pufferfish_bench.report import output
from pufferfish_bench.report.output import EMPTY, Cell, Sheet, signed

COLUMNS = (
    "the paper's claim", "quantity", "paper", "ours", "95 % interval", "p", "p (Holm)", "seeds", "seeds needed", "verdict",
)  # fmt: skip
# on a narrow terminal, the first ones first
DISPENSABLE = (
    "p",
    "seeds needed",
    "seeds",
    "p (Holm)",
    "quantity",
    "95 % interval",
)
NOT_TESTED, NOT_COMPARABLE = "not tested", "not comparable"
KINDS = (verdicts.HOLDS, verdicts.OPPOSITE, verdicts.ALIKE, bandwidth.MIXED, NOT_COMPARABLE, NOT_TESTED)
NOTHING_MEASURED = ("seeds", "verdict")  # columns that say nothing about a claim that was not run
READING = (
    "`paper` and `ours` are ratios for times (1.5x: 1.5 times as fast) and for sizes (1.5x: 1.5 times as small), and differences "
    "for everything else. A claim marked (ours) is not in the paper's words: it follows from its numbers, or it is a question "
    "of ours. Sizes, MACs and bytes are counted and compared exactly, in all digits that the paper prints, without a test. Runs "
    "are compared seed by seed: a two-sided t test on the differences (for times, on the logarithms of the ratios). A claim with "
    '"within" is tested for equivalence: two one-sided tests at the margin, which we chose; the interval is the two-sided one. '
    'For such a claim "no significant difference" means: not shown to be within the margin, and not shown to be beyond it. '
    "`p (Holm)` is corrected for the number of claims in the report, and a verdict needs it below 5 %. `seeds needed`: how many "
    "seeds with the observed spread have a chance of 80 % to show, corrected for all claims, equivalence if there is no "
    "difference, or else a difference as large as the paper's. A claim over bandwidth is tested at each measured rate, each test "
    "is one of the claims that p is corrected for, and the verdict names the rates; between them nothing is tested."
)


def claim_cells(claim: Claim) -> list[Cell | str]:
    """A row of the table of relations."""
    judgement, quantity = claim.judgement, claim.quantity
    show = "{:.2f}x".format if claim.is_ratio else partial(signed, quantity.show)
    return [
        claim.relation.label,
        quantity.label,
        output.number(claim.paper, show),
        output.number(claim.ours, show),
        Cell(" to ".join(map(show, judgement.interval)), claim.ours) if judgement.interval else EMPTY,
        output.number(judgement.p, "{:.2g}".format),
        output.number(judgement.corrected_p, "{:.2g}".format),
        Cell(" and ".join(map(str, judgement.seeds)), sum(judgement.seeds)) if claim.relation.has_seeds else EMPTY,
        output.number(judgement.seeds_needed, str),
        judgement.verdict,
    ]


def whole_cells(claim: Claim, tests: Sequence[Claim]) -> list[Cell | str]:
    """The row of a claim; for one over bandwidth that of all its tests, with the lowest and the highest of our ratios."""
    row, ratios = claim_cells(claim), [test.ours for test in tests if test.ours is not None]
    if ratios:
        lowest, highest = (
            claim_cells(replace(claim, judgement=replace(claim.judgement, ratio=ratio, difference=ratio)))[3]
            for ratio in (min(ratios), max(ratios))
        )
        row[3] = Cell(" to ".join(dict.fromkeys((lowest.text, highest.text))), lowest.value)
    return row


def number(name: str) -> str:
    """The printed name: Table 4 for table4, Figure 3a for figure3a; the name itself for a table of the user's."""
    if not name.startswith(("table", "figure")):
        return name.replace("_", " ")
    kind = "table" if name.startswith("table") else "figure"
    return f"{kind.capitalize()} {name.removeprefix(kind).replace('_', ' ').strip()}"


def place(name: str) -> str:
    """The name of a table's part of the page; one of the user's has no name that another part of the page may have."""
    return name if name.startswith(("table", "figure")) else f"own-{name}"


def of_table(found: Outcome) -> Sheet:
    """The claims of one table; one over bandwidth is followed by its tests at each rate."""
    whole = bandwidth.collected(found.claims)
    rows_of_claims = [row for claim, tests in whole for row in (whole_cells(claim, tests), *map(claim_cells, tests))]
    return Sheet("Claims", COLUMNS, rows_of_claims, "", READING, DISPENSABLE)


def of_report(outcomes: Sequence[Outcome]) -> Sheet:
    """All claims of these tables on one sheet, also those whose runs are missing, and how many have each verdict."""
    whole = [(found, claim, tests) for found in outcomes for claim, tests in bandwidth.collected(found.claims)]
    whole.sort(key=lambda one: one[1].judgement.verdict == verdicts.NOT_RUN)  # stable: what was not run comes last
    rows_of_claims = [[number(found.table.name), *whole_cells(claim, tests)] for found, claim, tests in whole]
    verdict = Counter(bandwidth.kind(claim.judgement.verdict) for _, claim, _ in whole)
    counts = ", ".join(f"{count} {words}" for words, count in verdict.most_common())
    sources = [
        f"{number(found.table.name)}: {'; '.join(found.provenance)}" for found in outcomes if found.claims and found.provenance
    ]
    note = f"{len(rows_of_claims)} claims: {counts}. From the records. {'. '.join(sources)}."
    return Sheet("Claims", ("table", *COLUMNS), rows_of_claims, note, READING)


@dataclass(frozen=True)
class Group:
    """The claims of a report with the same kind of verdict."""

    kind: str  # one of KINDS
    not_run: bool  # whether their runs are missing, so that there is nothing to read but the claims themselves
    sheet: Sheet

    @property
    def place(self) -> str:
        """Its name on the page."""
        return "claims-" + ("not run" if self.not_run else self.kind).replace(" ", "-")


def by_verdict(all_claims: Sheet) -> list[Group]:
    """The claims of `of_report` by kind of verdict, those that were not run last; without columns that are empty."""
    rows: dict[tuple[bool, str], list[Sequence[Cell]]] = {}
    for row in all_claims.rows:
        verdict = row[-1].text
        rows.setdefault((verdict == verdicts.NOT_RUN, bandwidth.kind(verdict)), []).append(row)
    return [
        Group(kind, not_run, compact(all_claims.columns, rows[not_run, kind], NOTHING_MEASURED if not_run else ()))
        for not_run in (False, True)
        for kind in KINDS
        if (not_run, kind) in rows
    ]


def compact(columns: Sequence[str], rows: Sequence[Sequence[Cell]], left_out: Sequence[str]) -> Sheet:
    """A sheet with the claim in the first column and the table in the second, without what has no content."""
    order = [1, 0, *range(2, len(columns))]
    kept = [place for place in order if columns[place] not in left_out and any(row[place].text for row in rows)]
    return Sheet("", [columns[place] for place in kept], [[row[place] for place in kept] for row in rows])


def rows(found: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "table": found.table.name, "profile": found.table.profile, "claim": claim.relation.plain_label,
            "source": "ours" if claim.relation.is_ours else "paper",
            "quantity": claim.relation.quantity, "of": claim.relation.of, "is": claim.relation.direction,
            "than": claim.relation.than, "than_quantity": claim.relation.than_quantity,
            "margin": claim.relation.margin, "margin_is_share": claim.relation.margin_is_share,
            "paper": claim.paper, "ours": claim.ours,
            "low": claim.judgement.interval and claim.judgement.interval[0],
            "high": claim.judgement.interval and claim.judgement.interval[1],
            "p": claim.judgement.p, "p_holm": claim.judgement.corrected_p,
            "seeds_of": claim.judgement.seeds[0], "seeds_than": claim.judgement.seeds[1],
            "seeds_needed": claim.judgement.seeds_needed, "verdict": claim.judgement.verdict,
        }
        for claim in found.claims
    ]  # fmt: skip
