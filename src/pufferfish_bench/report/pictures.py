"""A picture for each table and figure: the first figure of its cells, and how they came to it over time."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.report import charts
from pufferfish_bench.report.outcome import Outcome, Record

STYLES = ("-", "--", ":")  # colours and markers repeat after eight cells, the style of the line then changes


def draw(found: Outcome, out: Path, console: Console) -> bool:
    """Draw what was trained for a table, if anything was, as PNG and SVG."""
    trained = [cell.name for cell in found.table.cells if cell.kind != "describe" and found.records[cell.name]]
    if not trained:
        return False
    curves = {name: curve(found.records[name]) for name in trained}
    curves = {name: points for name, points in curves.items() if len(points[0]) > 1}
    with charts.style():
        width = max(4.5, 1.5 + 0.55 * len(trained))
        figure = Figure(figsize=(width + 6 * bool(curves), 5), layout="constrained")
        panels = figure.subplots(1, 1 + bool(curves), squeeze=False, width_ratios=[width, 6][: 1 + bool(curves)])[0]
        draw_figures(panels[0], found, trained)
        if curves:
            metric = found.records[next(iter(curves))][0].run["summary"]["metric"]
            draw_curves(panels[1], found, curves, metric)
        figure.suptitle(found.table.title, fontsize=12)
        charts.save(figure, out, console)
    return True


def draw_figures(axes: Axes, found: Outcome, trained: Sequence[str]) -> None:
    """The first figure of each cell that has it, with its spread over seeds, and every run as a dot."""
    first = next(iter(found.table.cell(trained[0]).figures))
    shown = [figure for figure in found.figures if figure.name == first and figure.cell.name in trained and figure.ours]
    for position, figure in enumerate(shown):
        look: dict[str, Any] = charts.look(position)
        ours = figure.ours
        axes.errorbar([position], [ours.mean], yerr=[ours.deviation or 0.0], capsize=4, markersize=8, linestyle="none", **look)
        axes.plot([position + 0.18] * len(ours.values), ours.values, linestyle="none", marker=".", color=charts.GREY)
    labels = [figure.cell.label for figure in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(shown[0].quantity.label if shown else first)


def draw_curves(axes: Axes, found: Outcome, curves: dict[str, tuple[list[float], list[float]]], metric: str) -> None:
    for position, (name, (minutes, values)) in enumerate(curves.items()):
        style = STYLES[position // len(charts.LINES) % len(STYLES)]
        axes.plot(minutes, values, label=found.table.cell(name).label, linestyle=style, markersize=4, **charts.look(position))
    axes.set(xlabel="minutes of training", ylabel=metric.replace("_", " "))
    axes.legend(fontsize=9)


def curve(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Minutes since the start and the metric after each epoch, the mean over seeds."""
    metric = records[0].run["summary"]["metric"]
    length = min(len(record.rows) for record in records)
    minutes, values, passed = [], [], [0.0] * len(records)
    for epoch in range(length):
        passed = [before + record.rows[epoch]["seconds"] for before, record in zip(passed, records, strict=True)]
        minutes.append(fmean(passed) / 60)
        values.append(fmean(record.rows[epoch][metric] for record in records))
    return minutes, values
