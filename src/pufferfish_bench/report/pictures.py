"""Which pictures a table or figure gets, as PNG and SVG with their provenance at the foot. What is drawn, each form knows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.report import breakdown, cell_charts, charts, measured, provenance, size_charts, sweep_charts
from pufferfish_bench.report.measured import Measured
from pufferfish_bench.report.outcome import Outcome, Record

Form = Callable[[Outcome, Sequence[str]], Figure]  # of the cells that were trained


def draw(found: Outcome, out: Path, console: Console) -> list[Path]:
    """Draw what was trained for a table, if anything was, as PNG and SVG; the files, but for their endings."""
    measured_in = [figure.cell for figure in found.figures if figure.ours and not figure.cell.counted]
    trained = list(dict.fromkeys(cell.name for cell in measured_in))
    made = []
    for ending, form in FORMS[found.table.picture].items() if trained else ():
        made.append(out.with_name(out.name + ending))
        with charts.style():
            figure = form(found, trained)
            words = (found.table.note, over_seeds(figure, found, trained), provenance.sentence(found.provenance))
            charts.write_at_foot(figure, " ".join(filter(None, words)))
            charts.save(figure, made[-1], console)
    return made


def over_seeds(figure: Figure, found: Outcome, trained: Sequence[str]) -> str:
    """Of how many runs each point is the mean, and what its whiskers are if it has some."""
    fewest, most = (choose(len(found.records[name]) for name in trained) for choose in (min, max))
    if most == 1:
        return "One seed."
    whiskers = any(isinstance(drawn, ErrorbarContainer) for axes in figure.axes for drawn in axes.containers)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"Mean over {count} seeds{', whiskers: one standard deviation' if whiskers else ''}."


def bars(found: Outcome, trained: Sequence[str]) -> Figure:
    """The parts of an epoch of each cell, stacked."""
    return breakdown.bars([mean_run(name.replace("_", "-"), found.records[name]) for name in trained])


def mean_run(label: str, records: Sequence[Record]) -> Measured:
    """The mean step of a cell over its seeds, which are alike but for their times."""
    runs = [
        measured.measured(dict(record.run), list(record.rows), label=label, directory=record.folder, phase=None)
        for record in records
    ]
    seconds = {section: fmean(run.seconds[section] for run in runs) for section in runs[0].seconds}
    return replace(runs[0], seconds=seconds)


FORMS: Mapping[str, Mapping[str, Form]] = {  # by what conf/table/ calls them; with what the name of each file ends
    "cells": {"": cell_charts.draw},
    "breakdown": {"": cell_charts.draw, "-breakdown": bars},
    "size": {"": cell_charts.draw, "-size": size_charts.draw},
    "sweep": {"": sweep_charts.draw_sweep},
    "scaling": {"": sweep_charts.draw_scaling},
}
