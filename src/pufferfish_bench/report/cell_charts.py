"""The cells of a table below one another with their first figure, and the metric of each over training time."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pufferfish_bench.paper import outcome, quantities
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import charts

STYLES = ("-", "--", ":")  # colours and markers repeat after eight cells; then the line style changes
Curve = tuple[list[float], list[float]]  # minutes, values


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """The first figure of each cell, and its metric over time."""
    curves, shown = several_epochs(found, trained), first_figures(found, trained)
    height = 0.8 + 0.33 * len(shown)
    figure, (above, *below) = panels(found, height, curves)
    draw_figures(above, trained, shown)
    for axes in below:
        draw_curves(axes, found, trained, curves)
    return figure


def panels(found: Outcome, height: float, curves: Mapping[str, Curve]) -> tuple[Figure, list[Axes]]:
    """A panel of this height in inches, and one below it for the curves, if any; narrow enough to stand beside a table."""
    heights = [height, *([3.2 + 0.12 * len(curves)] if curves else [])]
    figure = Figure(figsize=(charts.WIDTH, 0.8 + sum(heights)), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    return figure, list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


def first_figures(found: Outcome, trained: Sequence[str]) -> list[outcome.Figure]:
    """The first figure that was measured, for each cell that has it; trained cells have at least one."""
    there = [figure for figure in found.figures if figure.ours and figure.cell.name in trained]
    return [figure for figure in there if figure.name == there[0].name]


def draw_figures(axes: Axes, trained: Sequence[str], shown: Sequence[outcome.Figure]) -> None:
    """Each figure with its standard deviation over seeds, and every run as a small dot."""
    for position, figure in enumerate(shown):
        ours, look = figure.ours, charts.look(trained.index(figure.cell.name))
        spread = [ours.deviation or 0.0]
        axes.plot(ours.values, [position + 0.25] * len(ours.values), linestyle="none", marker=".", color=charts.GREY)
        axes.errorbar([ours.mean], [position], xerr=spread, capsize=4, markersize=8, linestyle="none", **look)
    axes.set_yticks(range(len(shown)), [figure.cell.label for figure in shown], fontsize=10)
    axes.set_ylim(len(shown) - 0.4, -0.6)  # the first at the top, as in the table
    axes.grid(visible=False, axis="y")
    several = any(len(figure.ours.values) > 1 for figure in shown)
    axes.set_xlabel(shown[0].quantity.label + " (small dots: every run)" * several)


def draw_curves(axes: Axes, found: Outcome, trained: Sequence[str], curves: Mapping[str, Curve]) -> None:
    """A line for each cell, in the colour it has in the panel above."""
    for name, (minutes, values) in curves.items():
        position = trained.index(name)
        style = STYLES[position // len(charts.LINES) % len(STYLES)]
        axes.plot(minutes, values, label=found.table.cell(name).label, linestyle=style, markersize=4, **charts.look(position))
    metric = found.records[next(iter(curves))][0].metric
    axes.set(xlabel="minutes of training", ylabel=quantities.label(metric))
    axes.legend(fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def several_epochs(found: Outcome, trained: Sequence[str]) -> dict[str, Curve]:
    """The curves of cells with more than one epoch; none if the cells have different metrics."""
    if len({found.records[name][0].metric for name in trained}) > 1:
        return {}
    curves = {name: curve(found.records[name]) for name in trained}
    return {name: points for name, points in curves.items() if len(points[0]) > 1}


def curve(records: Sequence[Record]) -> Curve:
    """Minutes since the start and the metric after each epoch, the mean over seeds."""
    metric = records[0].metric
    minutes = [fmean(seeds) for seeds in zip(*(record.minutes for record in records), strict=False)]
    values = [fmean(row[metric] for row in seeds) for seeds in zip(*(record.rows for record in records), strict=False)]
    return minutes, values
