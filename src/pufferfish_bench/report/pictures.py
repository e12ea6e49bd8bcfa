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

Form = Callable[[Outcome, Sequence[str]], Figure]  # called with the names of the cells that were trained


def draw(found: Outcome, out: Path, console: Console) -> list[Path]:
    """Draw the trained cells of a table, if any, as PNG and SVG; return the paths without their endings."""
    measured_in = [figure.cell for figure in found.figures if figure.ours and figure.cell.has_seeds]
    trained = list(dict.fromkeys(cell.name for cell in measured_in))
    made = []
    for ending, form in forms(found).items() if trained else ():
        made.append(out.with_name(out.name + ending))
        with charts.style():
            figure = form(found, trained)
            words = (found.table.note, over_seeds(figure, found, trained), provenance.sentence(found.provenance))
            charts.write_at_foot(figure, " ".join(filter(None, words)))
            charts.save(figure, made[-1], console)
    if found.table.picture == "lab" and trained:
        runs = [mean_run(found.table.cell(name).line, found.records[name]) for name in trained]
        seeds = max(len(found.records[name]) for name in trained)
        made += lab_pictures.draw(runs, found.table.note, out, console, seeds=seeds)
    return made


def forms(found: Outcome) -> Mapping[str, Form]:
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


FORMS: Mapping[str, Mapping[str, Form]] = {  # by their name in conf/table/; for each, the endings of the file names
    "cells": {"": cell_charts.draw},
    "breakdown": {"": cell_charts.draw, "-breakdown": bars},
    "size": {"": cell_charts.draw, "-size": size_charts.draw},
    "sweep": {"": sweep_charts.draw_sweep},
    "scaling": {"": sweep_charts.draw_scaling},
    "gaps": {"": gap_charts.draw},
    "lab": {"-bandwidth": bandwidth_charts.draw},  # and those of lab_pictures
}
