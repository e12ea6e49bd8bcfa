"""The cells of a table below one another with their first figure, the claims about it, and the metric over training time."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pufferfish_bench.paper import outcome, quantities
from pufferfish_bench.paper.outcome import Claim, Outcome
from pufferfish_bench.records import machine_load
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import charts

MOST_MARKERS = 12  # on a curve
STYLES = ("-", "--", ":")  # colours and markers repeat after eight cells; then the line style changes
MINUTES, EPOCHS = "minutes of training", "epoch (no times: other processes ran beside)"
Curve = tuple[list[float], list[float]]  # minutes or epochs, values


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """The first figure of each cell, the differences that the paper's claims are about, and the metric over time."""
    shown = first_figures(found, trained)
    figure, above, draw_rest = panels(found, trained, 0.8 + 0.33 * len(shown))
    draw_figures(above, trained, shown)
    draw_rest()
    return figure


def panels(found: Outcome, trained: Sequence[str], height: float, letters: int = 30) -> tuple[Figure, Axes, Callable[[], None]]:
    """A picture with an empty panel of this height in inches, and a function that fills the panels below it.

    These are one for the differences of each quantity, with so many letters in a line of a claim, and one for the curves, if
    there are any. The picture is narrow enough to stand beside a table.
    """
    claims, curves = compared(found), several_epochs(found, trained)
    heights = [height, *(1.0 + 0.45 * len(group) for group in claims), *([3.4 + 0.12 * len(curves)] if curves else [])]
    figure = Figure(figsize=(charts.WIDTH, 0.8 + sum(heights)), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    above, *below = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]

    def draw_rest() -> None:
        for axes, group in zip(below, claims, strict=False):
            draw_differences(axes, group, letters)
        if curves:
            draw_curves(below[-1], found, trained, curves)

    return figure, above, draw_rest


def compared(found: Outcome) -> list[list[Claim]]:
    """The claims whose difference has an interval, by quantity; all ratios of times together."""
    groups: dict[str, list[Claim]] = {}
    for claim in found.claims:
        if claim.judgement.interval:
            groups.setdefault("" if claim.quantity.is_time else claim.relation.quantity, []).append(claim)
    return list(groups.values())


def draw_differences(axes: Axes, claims: Sequence[Claim], letters: int) -> None:
    """For each claim the difference, or the ratio of times, with its 95 % interval; the margin, if any, is a grey band."""
    axes.use_sticky_edges = False  # room beside the bands
    is_time = claims[0].quantity.is_time
    banded = not is_time and any(claim.judgement.margin for claim in claims)
    for position, claim in enumerate(claims):
        ours, margin = claim.ours, claim.judgement.margin
        if banded and margin:
            axes.barh([position], [2 * margin], left=-margin, height=0.5, color="#DDDDDD")
        bars = charts.distances([(ours, claim.judgement.interval)])
        axes.errorbar([ours], [position], xerr=bars, capsize=4, marker="o", linestyle="none", color=charts.BLACK)
    axes.axvline(1.0 if is_time else 0.0, color=charts.GREY, linestyle="--")
    names = [textwrap.fill(claim.relation.label, letters) for claim in claims]
    axes.set_yticks(range(len(claims)), names, fontsize=8)
    axes.set_ylim(len(claims) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    words = "speed-up" if is_time else f"difference, {claims[0].quantity.label}"
    axes.set_xlabel(f"{words}\n(paired by seed; grey: margin)" if banded else f"{words} (paired by seed)", fontsize=10)


def first_figures(found: Outcome, trained: Sequence[str]) -> list[outcome.Figure]:
    """The first figure that was measured, for each cell that has it; trained cells have at least one."""
    there = [figure for figure in found.figures if figure.ours and figure.cell.name in trained]
    return [figure for figure in there if figure.name == there[0].name]


def draw_figures(axes: Axes, trained: Sequence[str], shown: Sequence[outcome.Figure]) -> None:
    """Each figure with its 95 % interval over seeds, and every run as a small dot."""
    for position, figure in enumerate(shown):
        ours, look = figure.ours, charts.look(trained.index(figure.cell.name))
        axes.plot(ours.values, [position + 0.25] * len(ours.values), linestyle="none", marker=".", color=charts.GREY)
        axes.errorbar([ours.mean], [position], xerr=charts.error_bars([ours]), capsize=4, markersize=8, linestyle="none", **look)
    axes.set_yticks(range(len(shown)), [figure.cell.label for figure in shown], fontsize=10)
    axes.set_ylim(len(shown) - 0.4, -0.6)  # the first at the top, as in the table
    axes.grid(visible=False, axis="y")
    several = any(len(figure.ours.values) > 1 for figure in shown)
    axes.set_xlabel(shown[0].quantity.label + " (small dots: every run)" * several)


def draw_curves(axes: Axes, found: Outcome, trained: Sequence[str], curves: Mapping[str, Curve]) -> None:
    """A line for each cell, in the colour it has in the panel above."""
    for name, (places, values) in curves.items():
        position = trained.index(name)
        style = STYLES[position // len(charts.LINES) % len(STYLES)]
        every = math.ceil(len(places) / MOST_MARKERS)
        look = {"linestyle": style, "markersize": 4, "markevery": every, **charts.look(position)}
        axes.plot(places, values, label=found.table.cell(name).label, **look)
    metric = found.records[next(iter(curves))][0].metric
    axes.set(xlabel=EPOCHS if had_company(found, trained) else MINUTES, ylabel=quantities.label(metric))
    axes.legend(fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def several_epochs(found: Outcome, trained: Sequence[str]) -> dict[str, Curve]:
    """The curves of cells with more than one epoch; none if the cells have different metrics.

    They are over epochs if other processes ran beside one of the runs, because the times then compare nothing.
    """
    if len({found.records[name][0].metric for name in trained}) > 1:
        return {}
    company = had_company(found, trained)
    curves = {name: curve(found.records[name], over_epochs=company) for name in trained}
    return {name: points for name, points in curves.items() if len(points[0]) > 1}


def had_company(found: Outcome, cells: Sequence[str]) -> bool:
    """Whether other processes used the machine during one of the runs of these cells."""
    return any(machine_load.had_company(record.run) for name in cells for record in found.records[name])


def curve(records: Sequence[Record], *, over_epochs: bool = False) -> Curve:
    """Minutes since the start, or epochs, and the metric after each epoch, the mean over seeds."""
    metric = records[0].metric
    minutes = [fmean(seeds) for seeds in zip(*(record.minutes for record in records), strict=False)]
    values = [fmean(row[metric] for row in seeds) for seeds in zip(*(record.rows for record in records), strict=False)]
    return [float(epoch + 1) for epoch in range(len(values))] if over_epochs else minutes, values
