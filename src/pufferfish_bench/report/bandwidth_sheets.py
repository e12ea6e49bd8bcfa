"""The bandwidths at which two methods of a table of the lab take the same time, as a sheet."""

import math

from pufferfish_bench.distributed.units import show_bits
from pufferfish_bench.paper import curves
from pufferfish_bench.paper.curves import Crossing
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.report.output import EMPTY, Cell, Sheet, number

COLUMNS = ("bandwidth", "faster below", "faster above", "single seeds", "from")
READING = (
    "Where the curves through the geometric means over seeds cross. Between measured rates a time is interpolated linearly in "
    "1 / bandwidth. `single seeds`: where the curves of each seed cross. Predicted: above the highest measured rate, towards the "
    "measured step without its collectives. Below the lowest rate nothing is said."
)


def sheets(found: Outcome) -> list[Sheet]:
    """One sheet if the table has curves over bandwidth."""
    drawn = curves.curves(found)
    if not drawn:
        return []
    rows = [crossing_cells(crossing) for crossing in curves.crossings(drawn)]
    return [Sheet("Crossing points", COLUMNS, rows, note(found, drawn), READING, ("single seeds",))]


def crossing_cells(crossing: Crossing) -> list[Cell | str]:
    """A row of the sheet."""
    low_high = dict.fromkeys(map(show_bits, (crossing.of_seeds[0], crossing.of_seeds[-1]))) if crossing.of_seeds else ()
    some = f" ({len(crossing.of_seeds)} of {crossing.seeds} seeds)" * (len(crossing.of_seeds) < crossing.seeds)
    return [
        number(crossing.bits, show_bits),
        crossing.below,
        crossing.above,
        Cell(" to ".join(low_high) + some) if crossing.seeds > 1 else EMPTY,
        "predicted" if crossing.predicted else "measured rates on both sides",
    ]


def note(found: Outcome, drawn: list[curves.Curve]) -> str:
    """The measured rates, methods that change places with no other one, and where our network is like the paper's."""
    rates = sorted({bits for curve in drawn for bits in curve.measured})
    words = [f"Measured at {', '.join(map(show_bits, rates))}."]
    crossed = {end for crossing in curves.crossings(drawn) for end in (crossing.below, crossing.above)}
    if without := [curve.label for curve in drawn if curve.label not in crossed]:
        words.append(f"No crossing in this range: {', '.join(without)}.")
    if like := like_the_paper(found):
        bits, line, ratio = like
        words.append(f"{line} has the paper's communication / computation ({ratio:.2f}) at {show_bits(bits)}.")
    return " ".join(words)


def like_the_paper(found: Outcome) -> tuple[float, str, float] | None:
    """The bandwidth at which a method has the paper's communication over computation, with the method and that ratio."""
    asked = curves.papers_ratio(found)
    if asked is None:
        return None
    line, ratio = asked
    ours = curves.ratios(found, line)
    met = curves.meetings(ours, dict.fromkeys(ours, ratio))
    return (met[0][0], line, ratio) if met and math.isfinite(met[0][0]) else None
