"""A figure over a number that varies from cell to cell: a swept setting, or the number of workers."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.report import cell_charts, charts

Points = list[tuple[int, Sample]]  # in ascending order


def draw_sweep(found: Outcome, trained: Sequence[str]) -> Figure:
    """The first figure of the cells over the setting, and the metric of each over time."""
    figure, above, draw_rest = cell_charts.panels(found, trained, 3.2, letters=16)
    points, sweep = swept(found, trained), found.table.sweep
    plot(above, points, color=charts.GREY)
    for cell in cell_charts.first_figures(found, trained):  # each in the colour of its curve below
        look = charts.look(trained.index(cell.cell.name))
        if cell.cell.name == sweep.reference:
            above.axhline(cell.ours.mean, linestyle="--", color=look["color"], label=cell.cell.label)
            above.legend(fontsize=9)
        else:
            above.plot([sweep.at[cell.cell.name]], [cell.ours.mean], markersize=8, linestyle="none", **look)
    charts.only_these_ticks(above, sorted({number for number, _ in points}))
    above.set_xlabel(sweep.label)
    name_figure(above, found, trained)
    draw_rest()
    return figure


def swept(found: Outcome, trained: Sequence[str]) -> Points:
    """The setting and the first figure of each cell that has the setting."""
    at, figures = found.table.sweep.at, cell_charts.first_figures(found, trained)
    there = [(at[figure.cell.name], figure.ours) for figure in figures if figure.cell.name in at]
    return sorted(there, key=lambda point: point[0])


def draw_scaling(found: Outcome, trained: Sequence[str]) -> Figure:
    """Time and speedup over the number of workers, with a line for each method."""
    figure = Figure(figsize=(charts.WIDTH, 7), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    time, gain = figure.subplots(2, 1, sharex=True)
    lines = scaled(found, trained)
    workers = sorted({number for points in lines.values() for number, _ in points})
    for position, (line, points) in enumerate(lines.items()):
        plot(time, points, label=line, **charts.look(position))
        if points[0][0] == workers[0]:
            gain.plot(*zip(*speedups(points), strict=True), label=line, **charts.look(position))
    gain.plot(workers, [number / workers[0] for number in workers], ":", color=charts.GREY, label="linear speedup")
    time.set_ylim(bottom=0)
    name_figure(time, found, trained)
    time.legend(fontsize=9)
    gain.set(xlabel="workers", ylabel=f"speedup over {workers[0]} workers")
    gain.legend(fontsize=9)
    charts.only_these_ticks(gain, workers)
    return figure


def scaled(found: Outcome, trained: Sequence[str]) -> dict[str, Points]:
    """The number of workers and the first figure of each cell, by line."""
    lines: dict[str, Points] = {}
    for figure in sorted(cell_charts.first_figures(found, trained), key=lambda figure: figure.cell.workers):
        lines.setdefault(figure.cell.line, []).append((figure.cell.workers, figure.ours))
    return lines


def speedups(points: Points) -> list[tuple[int, float]]:
    """The speedup of each point over the first, from the means."""
    return [(number, points[0][1].mean / sample.mean) for number, sample in points]


def plot(axes: Axes, points: Points, **look: str) -> None:
    """A line through the means, with error bars."""
    numbers, samples = [number for number, _ in points], [sample for _, sample in points]
    axes.errorbar(numbers, [sample.mean for sample in samples], yerr=charts.error_bars(samples), capsize=4, **look)


def name_figure(axes: Axes, found: Outcome, trained: Sequence[str]) -> None:
    axes.set_ylabel(cell_charts.first_figures(found, trained)[0].quantity.label)
