"""Pictures for each table and figure: the figures of its cells, how they came to them over time, and the paper's own forms."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.records import Row
from pufferfish_bench.report import breakdown, charts, measured
from pufferfish_bench.report.outcome import Outcome, Record

STYLES = ("-", "--", ":")  # colours and markers repeat after eight cells, the style of the line then changes


def draw(found: Outcome, out: Path, console: Console) -> list[Path]:
    """Draw what was trained for a table, if anything was, as PNG and SVG; the files, but for their endings."""
    trained = [cell.name for cell in found.table.cells if cell.kind != "describe" and found.records[cell.name]]
    if not trained:
        return []
    draw_cells(found, trained, out, console)
    further = {"breakdown": draw_breakdown, "size": draw_size}.get(found.table.picture)
    if further is None:
        return [out]
    beside = out.with_name(f"{out.name}-{found.table.picture}")
    further(found, trained, beside, console)
    return [out, beside]


def draw_breakdown(found: Outcome, trained: Sequence[str], out: Path, console: Console) -> None:
    """The parts of an epoch of each cell, stacked; of its first seed."""
    folders = [f"{name.replace('_', '-')}={found.records[name][0].folder}" for name in trained]
    breakdown.draw(measured.read(folders), out, console)


def draw_size(found: Outcome, trained: Sequence[str], out: Path, console: Console) -> None:
    """Time and metric over the parameters that are left, a point for each net that a cell trained; of its first seed."""
    with charts.style():
        figure = Figure(figsize=(11, 5), layout="constrained")
        time, metric = figure.subplots(1, 2)
        for position, name in enumerate(trained):
            record = found.records[name][0]
            asked = record.run["summary"]["metric"]
            points = nets(record.rows, asked)
            look = charts.look(position)
            time.plot([size for size, _, _ in points], [minutes for _, minutes, _ in points], label=name, **look)
            metric.plot([size for size, _, _ in points], [value for _, _, value in points], **look)
            metric.set_ylabel(asked.replace("_", " "))
        time.set_ylabel("minutes of training, all of it")
        for axes in (time, metric):
            axes.set_xlabel("millions of parameters that are not zero")
            axes.invert_xaxis()
        figure.suptitle(found.table.title, fontsize=12)
        figure.legend(*time.get_legend_handles_labels(), loc="outside lower center", ncols=len(trained))
        charts.save(figure, out, console)


def nets(rows: Sequence[Row], metric: str) -> list[tuple[float, float, float]]:
    """Millions of parameters, minutes since the start and the metric, of each net of a record at its end: one for a size."""
    found, passed = {}, 0.0
    for row in rows:
        passed += row["seconds"] / 60
        size = row.get("nonzero_parameters", row["parameters"])
        found[size] = (size / 1e6, passed, row[metric])
    last = rows[-1]
    pruned = "nonzero_parameters" in last
    return list(found.values()) if pruned else [found[last["parameters"]]]


def draw_cells(found: Outcome, trained: Sequence[str], out: Path, console: Console) -> None:
    """The first figure of each cell, and its metric over time."""
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
