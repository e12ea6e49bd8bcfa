"""Metric and training time over the number of remaining parameters, as in the paper's Figure 5."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from pufferfish_bench.paper import quantities
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import charts


class Net(NamedTuple):
    """A model that a run trained to the end; lottery-ticket pruning trains one per level."""

    size: float  # millions of parameters
    minutes: float  # since the start
    value: float  # of the metric


def draw(found: Outcome, trained: Sequence[str]) -> Figure:
    """A point for each model that a cell trained."""
    figure = Figure(figsize=(charts.WIDTH, 7), layout="constrained")
    figure.suptitle(charts.title(found.table.title))
    metric, time = figure.subplots(2, 1, sharex=True)
    for position, name in enumerate(trained):
        levels = over_seeds(found.records[name])
        # a single point is drawn above the lines
        look = {"capsize": 4, "label": found.table.cell(name).label, "zorder": 3 - position / 10}
        sizes = [level[0].mean for level in levels]
        for axes, samples in ((time, [level[1] for level in levels]), (metric, [level[2] for level in levels])):
            means = [sample.mean for sample in samples]
            axes.errorbar(sizes, means, yerr=charts.error_bars(samples), **look, **charts.look(position))
    metric.set_ylabel(quantities.label(found.records[trained[0]][0].metric))
    metric.legend(fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))  # not on top of error bars
    time.set(ylabel="minutes of training, total", xlabel="millions of nonzero parameters")
    time.invert_xaxis()
    return figure


def over_seeds(records: Sequence[Record]) -> list[tuple[Sample, Sample, Sample]]:
    """Size, minutes and metric of each model of a cell, with one value per seed; only levels that all seeds have."""
    runs = [nets(record) for record in records]
    return [tuple(map(Sample, zip(*level, strict=True))) for level in zip(*runs, strict=False)]


def nets(record: Record) -> list[Net]:
    """The models of a record at their last epoch: one per size if it was pruned, else the final one."""
    found, metric = {}, record.metric
    for row, minutes in zip(record.rows, record.minutes, strict=True):
        size = row.get("nonzero_parameters", row["parameters"])
        found[size] = Net(size / 1e6, minutes, row[metric])
    last = record.rows[-1]
    pruned = "nonzero_parameters" in last
    return list(found.values()) if pruned else [found[last["parameters"]]]
