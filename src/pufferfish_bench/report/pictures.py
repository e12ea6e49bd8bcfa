"""Which charts a table or figure gets, saved as PNG and SVG with their provenance at the bottom."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.paper import curves
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.records import measured, provenance
from pufferfish_bench.records.measured import Measured
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import (
    bandwidth_charts,
    breakdown,
    cell_charts,
    charts,
    gap_charts,
    lab_pictures,
    size_charts,
    sweep_charts,
)  # fmt: skip
from pufferfish_bench.report.charts import Picture

Form = Callable[[Outcome, Sequence[str]], Figure]  # called with the names of the cells that were trained


def draw(found: Outcome, out: Path, console: Console) -> list[Picture]:
    """Draw the trained cells of a table, if any, as PNG and SVG."""
    measured_in = [figure.cell for figure in found.figures if figure.ours and figure.cell.has_seeds]
    trained = list(dict.fromkeys(cell.name for cell in measured_in))
    made = []
    for ending, (form, shows) in forms(found).items() if trained else ():
        made.append(Picture(out.with_name(out.name + ending), shows))
        with charts.style():
            finish(form(found, trained), found, trained, made[-1], console)
    if found.table.picture == "lab" and trained:
        runs = [mean_run(found.table.cell(name).line, found.records[name]) for name in trained]
        seeds = max(len(found.records[name]) for name in trained)
        made += lab_pictures.draw(runs, found.table.note, out, console, seeds=seeds)
    return made


def finish(figure: Figure, found: Outcome, trained: Sequence[str], picture: Picture, console: Console) -> None:
    """Write at the foot what the chart was made from, and save it."""
    words = (found.table.note, over_seeds(figure, found, trained), provenance.sentence(found.provenance))
    charts.write_at_foot(figure, " ".join(filter(None, words)))
    charts.save(figure, picture.path, console)


def forms(found: Outcome) -> Mapping[str, tuple[Form, str]]:
    """The charts of a table; times over bandwidth need two rates."""
    known = FORMS[found.table.picture]
    return known if found.table.picture != "lab" or curves.curves(found) else {}


def over_seeds(figure: Figure, found: Outcome, trained: Sequence[str]) -> str:
    """How many runs each point is the mean of, and what its error bars mean, if it has any."""
    fewest, most = (choose(len(found.records[name]) for name in trained) for choose in (min, max))
    if most == 1:
        return "One seed."
    has_error_bars = any(isinstance(drawn, ErrorbarContainer) for axes in figure.axes for drawn in axes.containers)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"Mean over {count} seeds{', error bars: 95 % interval of the mean (t distribution)' if has_error_bars else ''}."


def bars(found: Outcome, trained: Sequence[str]) -> Figure:
    """The parts of an epoch of each cell, stacked."""
    return breakdown.bars([mean_run(name.replace("_", "-"), found.records[name]) for name in trained])


def mean_run(label: str, records: Sequence[Record]) -> Measured:
    """The mean step of a cell over its seeds, which differ only in their times."""
    runs = [measured.measured(record, label=label) for record in records]
    seconds = {section: fmean(run.seconds[section] for run in runs) for section in runs[0].seconds}
    return replace(runs[0], seconds=seconds)


CELLS = "a point with its interval for each cell, the differences that the claims are about, and learning curves if there are any"
FORMS: Mapping[str, Mapping[str, tuple[Form, str]]] = {  # by their name in conf/table/; for each, the endings of the file names
    "cells": {"": (cell_charts.draw, CELLS)},
    "breakdown": {"": (cell_charts.draw, CELLS), "-breakdown": (bars, "the parts of an epoch of each cell, as stacked bars")},
    "size": {
        "": (cell_charts.draw, CELLS),
        "-size": (size_charts.draw, "the metric and the minutes of training over the number of nonzero parameters"),
    },
    "sweep": {"": (sweep_charts.draw_sweep, "the metric over the setting that is swept, and learning curves")},
    "scaling": {"": (sweep_charts.draw_scaling, "seconds per epoch and speed-up over the number of workers, by method")},
    "gaps": {"": (gap_charts.draw, "the difference between the two nets over the number of images seen, with the paper's")},
    "lab": {  # and those of lab_pictures
        "-bandwidth": (
            bandwidth_charts.draw, "seconds per epoch and speed-up over bandwidth, a line for each method, with crossing points",
        )
    },
}  # fmt: skip
