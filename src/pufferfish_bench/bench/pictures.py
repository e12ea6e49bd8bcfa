"""The benchmark's pictures: ratios against targets and limits, and step time over width."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from pufferfish_bench.bench.row import Row
from pufferfish_bench.report import charts

SHOWN = (0.4, 2.5)  # the range of ratios relative to their targets
TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5)


def ratios(rows: Sequence[Row]) -> Figure:
    """Every ratio relative to its target: a point to the right of the line has met it, whichever direction the target has."""
    figure = Figure(figsize=(10, 1.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        middle, *ends = (within(relative(row, ratio)) for ratio in (row.ratio, row.lowest, row.highest))
        colour = charts.GREEN if row.met else charts.VERMILION
        axes.plot(ends, [place, place], color=colour, linewidth=3, alpha=0.5, solid_capstyle="butt")
        axes.plot(middle, place, marker=marker(row), color=colour, markersize=8, linestyle="none")
        if row.limit is not None:
            axes.plot(within(relative(row, row.limit)), place, marker="|", markersize=14, markeredgewidth=2, color=charts.BLACK)
        words = f"{row.ratio_text} ({row.target_text})"
        axes.annotate(words, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9, annotation_clip=False)
    axes.axvline(1, color=charts.BLUE, linewidth=1.5)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(SHOWN[0] / 1.05, SHOWN[1] * 1.05)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("relative to the target: to the right of the line it is met")
    figure.suptitle(
        "Ratio (target) of each row. Band: lowest to highest round. Black bar: limit.\n"
        f"Arrows and bars at the edge are beyond {SHOWN[0]:g} or {SHOWN[1]:g}.",
        fontsize=11,
    )
    return figure


def within(value: float) -> float:
    """A value at most as far from 1 as the picture shows."""
    return min(max(value, SHOWN[0]), SHOWN[1])


def marker(row: Row) -> str:
    """An arrow if the point is beyond the edge, else a disc for a target that is met and a cross for one that is not."""
    value = relative(row, row.ratio)
    if value < SHOWN[0]:
        return "<"
    return ">" if value > SHOWN[1] else "o" if row.met else "X"


def relative(row: Row, ratio: float) -> float:
    """How far a ratio is beyond the target: above 1 is better, whichever direction it has."""
    return ratio / row.target if row.direction == ">=" else row.target / ratio


def growth(found: dict[str, Any]) -> Figure:
    """Step time of both nets, and how many times as fast the hybrid net is, over the width: a line for each batch size."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    times, gains = figure.subplots(1, 2)
    sizes = sorted({point["batch_size"] for point in found["points"]})
    widths = sorted({point["width"] for point in found["points"]})
    for number, size in enumerate(sizes):
        points = sorted((p for p in found["points"] if p["batch_size"] == size), key=lambda point: point["width"])
        look, x = charts.look(number), [point["width"] for point in points]
        times.plot(x, [point["vanilla"] for point in points], **look, label=f"vanilla, batch {size}")
        times.plot(x, [point["hybrid"] for point in points], **look, linestyle="--", label=f"hybrid, batch {size}")
        gains.plot(x, [point["times_as_fast"] for point in points], **look, label=f"batch {size}")
        width = found["pays_from_width"][str(size)]
        if width is not None and width != widths[0]:
            gains.axvline(width, color=look["color"], linestyle=":", linewidth=1)
    limits = {point["width"]: point["macs_ratio"] for point in found["points"]}
    gains.plot(widths, [limits[width] for width in widths], color=charts.BLACK, linestyle="--", label="limit (MACs)")
    gains.axhline(1, color=charts.GREY)
    times.set_yscale("log")
    times.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    times.set_ylabel("seconds per step")
    gains.set_ylabel("hybrid: times as fast as vanilla")
    for axes in (times, gains):
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [f"{width:g}" for width in widths])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("width of ResNet-18")
        axes.legend(fontsize=8)
    figure.suptitle("How the cost of a step grows (dotted: from this width on the hybrid net is faster)")
    return figure
