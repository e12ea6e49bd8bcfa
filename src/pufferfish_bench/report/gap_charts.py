"""The gap between two nets over the training budget, with the paper's gap at the paper's budget on the same axis."""

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from pufferfish_bench.paper.gaps import GapCurve
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.quantities import quantity
from pufferfish_bench.report import charts

SHIFT = 1.04  # curves are drawn side by side, so that their error bars do not cover each other
SENTENCE_LETTERS = 76  # in a line above the axes


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """A line for each net, and the sentence on its trend above it."""
    figure = Figure(figsize=(charts.WIDTH, 6), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    axes = figure.subplots()
    for position, curve in enumerate(found.gaps):
        draw_curve(axes, curve, position, SHIFT ** (2 * position - len(found.gaps) + 1))
    axes.axhline(0.0, color=charts.GREY, linestyle="--", zorder=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.minorticks_off()
    axes.set_xlabel("images seen in training (epochs x training images)")
    axes.set_ylabel(f"vanilla minus Pufferfish,\n{quantity(found.table.gaps.quantity).label}")
    sentences = [textwrap.fill(curve.sentence, SENTENCE_LETTERS) for curve in found.gaps]
    axes.set_title("\n".join(sentences), loc="left", fontsize=9)
    axes.legend(fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.13), columnspacing=1.2)
    name_budgets(axes, found.gaps)
    return figure


def name_budgets(axes: Axes, curves: Sequence[GapCurve]) -> None:
    """A second axis, at the top, with the multiples of the recipe's epochs, and the paper's budget."""
    names: dict[int, list[str]] = {}
    for curve in curves:
        own = [(point.images, f"{point.budget:g}x") for point in curve.points if point.images and point.gap]
        for images, name in (*own, (curve.paper.images, "paper")):
            if name not in names.setdefault(images, []):
                names[images].append(name)
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(names), [", ".join(there) for there in names.values()], fontsize=9)
    above.minorticks_off()
    above.spines["top"].set_visible(False)


def draw_curve(axes: Axes, curve: GapCurve, position: int, shift: float) -> None:
    """Our points with the 95 % interval of the paired difference, joined by a line; the paper's with its standard deviation."""
    look = charts.look(position)
    there = {point.images * shift: point.gap for point in curve.points if point.images and point.gap}
    gaps = list(there.values())
    means = [gap.mean for gap in gaps]
    axes.errorbar(list(there), means, yerr=charts.error_bars(gaps), capsize=4, label=curve.net, **look)
    paper = curve.paper.gap
    axes.errorbar(
        [curve.paper.images * shift], [paper.mean], yerr=[paper.deviation or 0.0], capsize=4, linestyle="none", fillstyle="none",
        markersize=9, label=f"{curve.net}, paper", **look,
    )  # fmt: skip


def count(value: float) -> str:
    """A number of images on the axis: 200 k, 5 M."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"
