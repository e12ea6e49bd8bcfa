"""What a smaller net costs: training time and metric over the parameters that are left, as in the paper's Figure 5."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from pufferfish_bench.report import charts, quantities
from pufferfish_bench.report.outcome import Outcome, Record
from pufferfish_bench.report.verdicts import Sample


class Net(NamedTuple):
    """A net that a run trained to its end; a lottery trains one for each level."""

    size: float  # millions of parameters
    minutes: float  # since the start
    value: float  # of the metric


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """A point for each net that a cell trained."""
    figure = Figure(figsize=(charts.WIDTH, 7), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    metric, time = figure.subplots(2, 1, sharex=True)
    for position, name in enumerate(trained):
        levels = over_seeds(found.records[name])
        # a lone point stays in sight
        look = {"capsize": 4, "label": found.table.cell(name).label, "zorder": 3 - position / 10}
        sizes = [level[0].mean for level in levels]
        for axes, samples in ((time, [level[1] for level in levels]), (metric, [level[2] for level in levels])):
            means, spreads = [sample.mean for sample in samples], [sample.deviation or 0.0 for sample in samples]
            axes.errorbar(sizes, means, yerr=spreads, **look, **charts.look(position))
    metric.set_ylabel(quantities.label(found.records[trained[0]][0].run["summary"]["metric"]))
    metric.legend(fontsize=9)
    time.set(ylabel="minutes of training, all of it", xlabel="millions of parameters that are not zero")
    time.invert_xaxis()
    return figure


def over_seeds(records: Sequence[Record]) -> list[tuple[Sample, Sample, Sample]]:
    """Size, minutes and metric of each net of a cell, a value for each seed; of levels, as many as every seed has."""
    runs = [nets(record) for record in records]
    return [tuple(map(Sample, zip(*level, strict=True))) for level in zip(*runs, strict=False)]


def nets(record: Record) -> list[Net]:
    """Each net of a record at its end: one for a size if it was pruned, else the last."""
    found, metric = {}, record.run["summary"]["metric"]
    for row, minutes in zip(record.rows, record.minutes, strict=True):
        size = row.get("nonzero_parameters", row["parameters"])
        found[size] = Net(size / 1e6, minutes, row[metric])
    last = record.rows[-1]
    pruned = "nonzero_parameters" in last
    return list(found.values()) if pruned else [found[last["parameters"]]]
