"""The gap between two nets at each training budget as a table, with a sentence on its trend."""

from functools import partial
from typing import Any

from pufferfish_bench.paper.gaps import GapCurve, PaperPoint, Point
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.quantities import Quantity, quantity
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.report import output
from pufferfish_bench.report.output import EMPTY, Cell, Sheet

COLUMNS = ("net", "budget", "epochs", "images seen", "vanilla", "Pufferfish", "gap", "95 % interval", "seeds")
PAPER = "paper"


def reading(flat: float) -> str:
    return (
        "`gap` is vanilla minus Pufferfish, paired by seed. The trend is the slope of a regression on the logarithm of the "
        "images seen, with an intercept for each seed: closing if the 95 % interval of the slope is below 0, flat if it is "
        f"within {flat:g} points per doubling, widening if it is above 0, otherwise not enough to say. The spread of the paper's "
        "gap is one standard deviation of the difference of two runs."
    )


def sheet(found: Outcome) -> Sheet:
    """A row for each net and budget; what was not run is named."""
    asked = quantity(found.table.gaps.quantity)
    rows = [row for curve in found.gaps for row in rows_of(curve, asked)]
    note = " ".join(curve.sentence for curve in found.gaps)
    return Sheet("Gap against budget", COLUMNS, rows, note, reading(found.table.gaps.flat), ("images seen", "seeds", "epochs"))


def rows_of(curve: GapCurve, asked: Quantity) -> list[list[Cell | str]]:
    return [*(our_row(curve.net, point, asked) for point in curve.points), papers_row(curve.net, curve.paper, asked)]


def our_row(net: str, point: Point, asked: Quantity) -> list[Cell | str]:
    gap, signed = point.gap, partial(output.signed, asked.show)
    return [
        net,
        Cell(f"{point.budget:g}x", point.budget),
        output.number(point.epochs, str),
        output.number(point.images, "{:,}".format),
        of_sample(point.vanilla, asked),
        of_sample(point.pufferfish, asked),
        output.number(gap.mean if gap else None, signed),
        Cell(" to ".join(map(signed, gap.interval)), gap.mean) if gap and gap.interval else EMPTY,
        output.number(len(gap.values) if gap else None, str),
    ]


def of_sample(sample: Sample | None, asked: Quantity) -> Cell:
    return Cell(output.spread(asked.show, sample.mean, sample.deviation), sample.mean) if sample else Cell("not run")


def papers_row(net: str, point: PaperPoint, asked: Quantity) -> list[Cell | str]:
    gap = point.gap
    values = [Cell(output.spread(asked.show, own.mean, own.deviation), own.mean) for own in (point.vanilla, point.pufferfish)]
    gap_text = output.signed(asked.show, gap.mean) + (f" ± {asked.show(gap.deviation)}" if gap.deviation is not None else "")
    return [
        net,
        PAPER,
        Cell(str(point.epochs), point.epochs),
        Cell(f"{point.images:,}", point.images),
        *values,
        Cell(gap_text, gap.mean),
        EMPTY,
        EMPTY,
    ]


def rows(found: Outcome) -> list[dict[str, Any]]:
    """All points with full precision, for programs."""
    ours = [our_values(found, curve, point) for curve in found.gaps for point in curve.points]
    return [*ours, *(paper_values(found, curve) for curve in found.gaps)]


def our_values(found: Outcome, curve: GapCurve, point: Point) -> dict[str, Any]:
    gap = point.gap
    low, high = (gap.interval if gap else None) or (None, None)
    return {
        "table": found.table.name, "profile": found.table.profile, "net": curve.net, "budget": point.budget,
        "epochs": point.epochs, "images": point.images,
        "vanilla": point.vanilla and point.vanilla.mean, "pufferfish": point.pufferfish and point.pufferfish.mean,
        "gap": gap and gap.mean, "low": low, "high": high, "deviation": gap and gap.deviation,
        "seeds": len(gap.values) if gap else 0, "trend": curve.trend.verdict,
    }  # fmt: skip


def paper_values(found: Outcome, curve: GapCurve) -> dict[str, Any]:
    point, gap = curve.paper, curve.paper.gap
    return {
        "table": found.table.name, "profile": PAPER, "net": curve.net, "budget": PAPER,
        "epochs": point.epochs, "images": point.images, "vanilla": point.vanilla.mean, "pufferfish": point.pufferfish.mean,
        "gap": gap.mean, "low": None, "high": None, "deviation": gap.deviation, "seeds": None, "trend": None,
    }  # fmt: skip
