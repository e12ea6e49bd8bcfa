"""The metric of some runs over epochs and over seconds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.paper.quantities import label
from pufferfish_bench.records import reader
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import charts
from pufferfish_bench.report.compare import names_of

STYLES = ("-", "--", ":")  # colours repeat after eight runs; then the line style changes


def write(groups: Sequence[tuple[str, Sequence[Record]]], out: Path, console: Console) -> None:
    """Draw each group that has epochs, and write PNG and SVG; several pictures have numbers at the end of their names."""
    drawn = [runs for _, records in groups for runs in by_metric(records)]
    if not drawn:
        raise InputError("none of these runs has finished an epoch, so there is nothing to draw")
    for number, runs in enumerate(drawn, start=1):
        with charts.style():
            charts.save(draw(runs), out.with_name(f"{out.name}-{number}") if len(drawn) > 1 else out, console)


def by_metric(records: Sequence[Record]) -> Iterator[list[tuple[str, Record]]]:
    """The runs with epochs and their names, one list for each metric."""
    named = [(name, record) for name, record in zip(names_of(records), records, strict=True) if record.rows]
    for metric in dict.fromkeys(record.metric for _, record in named):
        yield [(name, record) for name, record in named if record.metric == metric]


def draw(runs: Sequence[tuple[str, Record]]) -> Figure:
    """A panel over epochs and one over seconds of training, surgery included, with a line for each run."""
    figure = Figure(figsize=(2 * charts.WIDTH, 3.6 + 0.14 * len(runs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (name, record) in enumerate(runs):
        with reader.asking(record.folder):
            values = [row[record.metric] for row in record.rows]
            seconds = [60 * minutes for minutes in record.minutes]
        line(left, place, name, [row["epoch"] + 1 for row in record.rows], values)
        line(right, place, name, seconds, values)
    record = runs[0][1]
    left.set(xlabel="epoch", ylabel=printable(label(record.metric)))
    right.set(xlabel="seconds of training")
    if not record.higher_is_better:
        left.set_yscale("log")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, fontsize=9, ncols=2, loc="outside lower center")
    return figure


def line(axes: Axes, place: int, name: str, x: Sequence[float], values: Sequence[float]) -> None:
    style = STYLES[place // len(charts.LINES) % len(STYLES)]
    axes.plot(x, values, label=printable(name), linestyle=style, markersize=4, **charts.look(place))
