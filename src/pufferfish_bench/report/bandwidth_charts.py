"""Seconds per epoch and speed-up over bandwidth, with a line for each method and a number at each crossing point."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pufferfish_bench.distributed.units import show_bits
from pufferfish_bench.paper import curves
from pufferfish_bench.paper.curves import Crossing, Curve
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.report import charts
from pufferfish_bench.report.bandwidth_sheets import like_the_paper

BEYOND, UNLIMITED = 5.0, 9.0  # times the highest measured rate: how far predictions are drawn, and where "unlimited" stands


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """Time above, speed-up over the first method below, the list of crossing points at the bottom."""
    drawn = curves.curves(found)
    rates = sorted({bits for curve in drawn for bits in curve.measured})
    crossed = curves.crossings(drawn)
    lines = math.ceil(len(crossed) / 2)
    figure = Figure(figsize=(7.5, 7.6 + 0.2 * lines), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    time, gain, below = figure.subplots(3, 1, height_ratios=[3.2, 3.2, 0.1 + 0.2 * lines])
    for number, curve in enumerate(drawn):
        draw_times(time, curve, rates, charts.look(number))
        if number:
            draw_speedups(gain, curve, drawn[0], rates, charts.look(number))
    gain.axhline(1.0, color=charts.look(0)["color"], linewidth=1)
    for number, crossing in enumerate(crossed, start=1):
        mark(time, gain, number, crossing, {curve.label: curve for curve in drawn}, drawn[0], rates)
    time.set(ylabel="seconds per epoch")
    gain.set(ylabel=f"times as fast as {drawn[0].label}", xlabel="bandwidth of each host's link")
    for axes in (time, gain):
        set_scales(axes, drawn, rates)
        mark_papers_ratio(found, axes, rates, in_words=axes is gain)
    name_ratios(found, time, drawn[0], rates)
    list_crossings(below, crossed)
    gain.legend(*time.get_legend_handles_labels(), loc="upper right", fontsize=9)
    return figure


def draw_gains(found: Outcome) -> Figure:
    """The speed-up over the first method alone, without crossing points: the short form, which opens the page."""
    base, *others = drawn = curves.curves(found)
    rates = sorted({bits for curve in drawn for bits in curve.measured})
    figure = Figure(figsize=(charts.WIDTH, 5), layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(others, start=1):
        draw_speedups(axes, curve, base, rates, charts.look(number))
    axes.axhline(1.0, color=charts.look(0)["color"], linewidth=1, label=base.label)
    axes.set(ylabel=f"times as fast as {base.label}", xlabel="bandwidth of each host's link")
    set_scales(axes, drawn, rates)
    mark_papers_ratio(found, axes, rates, in_words=True)
    axes.tick_params(axis="x", labelsize=9)  # a narrower picture than that of `draw`
    axes.legend(loc="upper right", fontsize=9)
    return figure


def set_scales(axes: Axes, drawn: Sequence[Curve], rates: Sequence[float]) -> None:
    """Both axes logarithmic, with readable numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
    name_rates(axes, rates, unlimited=any(math.inf in curve.samples for curve in drawn))


def draw_times(axes: Axes, curve: Curve, rates: Sequence[float], look: dict[str, str]) -> None:
    """The measured points with their intervals, and the curve through them."""
    means = curve.means
    values = [(means[bits], curves.interval(curve.samples[bits])) for bits in curve.measured]
    points(axes, curve.measured, values, curve.label, look)
    line(axes, curve.measured, rates, lambda bits: curves.at(means, bits), math.inf in means, look)


def draw_speedups(axes: Axes, curve: Curve, base: Curve, rates: Sequence[float], look: dict[str, str]) -> None:
    """The same for the ratio of two curves."""
    both = [bits for bits in curve.measured if bits in base.samples]
    values = [curves.speedup(curve, base, bits) for bits in both]
    points(axes, both, values, curve.label, look)
    ends = math.inf in curve.samples and math.inf in base.samples
    line(axes, both, rates, lambda bits: curves.at(base.means, bits) / curves.at(curve.means, bits), ends, look)


def points(
    axes: Axes,
    rates: Sequence[float],
    values: Sequence[tuple[float, tuple[float, float] | None]],
    label: str,
    look: dict[str, str],
) -> None:
    """Values with their intervals."""
    means = [value for value, _ in values]
    axes.errorbar(rates, means, yerr=charts.distances(values), capsize=4, linestyle="none", label=label, **look)


def line(axes: Axes, measured: Sequence[float], rates: Sequence[float], value, ends: bool, look: dict[str, str]) -> None:
    """The interpolation between measured rates, dashed where it is predicted, and a hollow marker for unlimited bandwidth."""
    inside = np.geomspace(measured[0], measured[-1], 120).clip(measured[0], measured[-1])
    axes.plot(inside, [value(bits) for bits in inside], color=look["color"])
    if ends:
        outside = np.geomspace(measured[-1], BEYOND * rates[-1], 30).clip(measured[-1])
        axes.plot(outside, [value(bits) for bits in outside], "--", color=look["color"], linewidth=1)
        axes.plot([UNLIMITED * rates[-1]], [value(math.inf)], linestyle="none", markerfacecolor="none", **look)


def mark(time: Axes, gain: Axes, number: int, crossing: Crossing, of: dict[str, Curve], base: Curve, rates: Sequence[float]):
    """The number of a crossing point in both panels; one outside the drawn bandwidths is only in the list."""
    if crossing.bits > BEYOND * rates[-1]:
        return
    seconds = curves.at(of[crossing.below].means, crossing.bits)
    for axes, value in ((time, seconds), (gain, curves.at(base.means, crossing.bits) / seconds)):
        axes.plot([crossing.bits], [value], marker="o", markersize=7, color="none", markeredgecolor=charts.BLACK, zorder=3)
        axes.annotate(str(number), (crossing.bits, value), (0, 7), textcoords="offset points", ha="center", fontsize=9, zorder=4)


def name_rates(axes: Axes, rates: Sequence[float], *, unlimited: bool) -> None:
    """A tick for each measured rate, and one for unlimited bandwidth."""
    ends = [UNLIMITED * rates[-1]] if unlimited else []
    axes.set_xscale("log")
    axes.set_xticks([*rates, *ends], [*map(show_bits, rates), *(["unlimited,\npredicted"] * len(ends))])
    axes.tick_params(axis="x", which="minor", bottom=False)


def name_ratios(found: Outcome, axes: Axes, base: Curve, rates: Sequence[float]) -> None:
    """Communication over computation of the first method at each rate, on a second axis at the top."""
    ratios = curves.ratios(found, base.label)
    if not ratios:
        return
    above = axes.secondary_xaxis("top")
    above.set_xticks([bits for bits in rates if bits in ratios], [f"{ratios[bits]:.2g}" for bits in rates if bits in ratios])
    above.tick_params(axis="x", which="minor", top=False)
    above.set_xlabel(f"{base.label}: communication / computation", fontsize=10)


def mark_papers_ratio(found: Outcome, axes: Axes, rates: Sequence[float], *, in_words: bool) -> None:
    """A line where communication over computation is that of the paper, if it is in sight."""
    like = like_the_paper(found)
    if not like or not rates[0] <= like[0] <= BEYOND * rates[-1]:
        return
    axes.axvline(like[0], color=charts.GREY, linestyle=":", linewidth=1.5, zorder=0)
    if in_words:
        words = f"{like[2]:.2f} at {show_bits(like[0])}:\nas in the paper"
        beside = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
        axes.annotate(words, (like[0], 0.99), (4, 0), fontsize=8, color="#555555", **beside)


def list_crossings(axes: Axes, crossed: Sequence[Crossing]) -> None:
    """The numbers of the crossing points with their bandwidths and methods, in two columns."""
    axes.axis("off")
    lines = math.ceil(len(crossed) / 2)
    for place, crossing in enumerate(crossed):
        column, row = divmod(place, lines)
        words = (
            f"{place + 1}: {show_bits(crossing.bits)}{', predicted' * crossing.predicted}: {crossing.below} | {crossing.above}"
        )
        axes.text(0.52 * column - 0.04, 1 - (row + 0.5) / lines, words, transform=axes.transAxes, va="center", fontsize=8.5)
