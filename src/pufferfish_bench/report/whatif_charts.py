"""The charts of pufferfish-whatif: time per epoch over workers, as in the paper's Figure 4 (c), and over bandwidth."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.console import Console

from pufferfish_bench.distributed import units
from pufferfish_bench.distributed.prediction import break_evens, epoch_seconds, handovers, uniform
from pufferfish_bench.records import provenance
from pufferfish_bench.records.measured import Link, Measured, trained
from pufferfish_bench.report import charts
from pufferfish_bench.report.breakdown import conditions

SPAN = (1e7, 1e11)  # bits per second on the bandwidth axis; wider if the fastest method changes outside


def over_workers(
    runs: Sequence[Measured], workers: Sequence[int], link: Link, samples: int, out: Path, console: Console, *, note: str
) -> None:
    """Time per epoch and speedup over the first method, for each number of workers."""
    times = {run.label: [epoch_seconds(run, n, uniform(link), samples) for n in workers] for run in runs}
    with charts.style():
        figure = Figure(figsize=(11, 5), layout="constrained")
        time, gain = figure.subplots(1, 2)
        for number, (label, seconds) in enumerate(times.items()):
            time.plot(workers, seconds, label=label, **charts.look(number))
            if number:
                gain.plot(workers, np.divide(times[runs[0].label], seconds), **charts.look(number))
        gain.axhline(1.0, label=runs[0].label, color=charts.look(0)["color"], linewidth=1, linestyle="--")
        time.set(
            yscale="log",
            ylabel="seconds per epoch, predicted",
            title=f"{trained(runs)}:\n{units.show_bits(8 * link.bandwidth)}, latency {units.show_seconds(link.latency)}",
        )
        gain.set(ylabel=f"speedup over {runs[0].label}", title=f"speedup over {runs[0].label}")
        for axes in (time, gain):
            axes.set(xscale="log", xlabel="workers")
            charts.only_these_ticks(axes, list(workers))
        time.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        figure.legend(*time.get_legend_handles_labels(), loc="outside upper center", ncols=min(len(runs), 5))
        charts.write_at_foot(figure, source(runs, note))
        charts.save(figure, out.with_name(out.name + "-workers"), console)


def over_bandwidth(
    runs: Sequence[Measured], workers: int, link: Link, samples: int, out: Path, console: Console, *, note: str
) -> None:
    """Time per epoch over bandwidth; rings mark break-even points, labels those at which the fastest method changes."""

    def epoch(run: Measured, bits: float) -> float:
        return epoch_seconds(run, workers, uniform(Link(link.latency, bits / 8)), samples)

    points, changes = break_evens(runs, workers, link.latency), handovers(runs, workers, link.latency)
    named = [8 * point.bandwidth for point in changes]
    span = np.geomspace(min([SPAN[0], *(bits / 3 for bits in named)]), max([SPAN[1], *(bits * 3 for bits in named)]), 201)
    with charts.style():
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="bandwidth of a worker's link", ylabel="seconds per epoch, predicted")
        for number, run in enumerate(runs):
            axes.plot(span, [epoch(run, bits) for bits in span], label=run.label, markevery=25, **charts.look(number))
        for point in points:
            bits = 8 * point.bandwidth
            if span[0] <= bits <= span[-1]:
                ring = {"marker": "o", "color": "none", "markeredgecolor": charts.BLACK, "zorder": 3}
                axes.plot([bits], [epoch(point.slow_network, bits)], markersize=14 if point in changes else 8, **ring)
        for number, (point, bits) in enumerate(zip(changes, named, strict=True)):
            axes.annotate(
                f"{units.show_bits(bits)}\n{point.slow_network.label} |\n{point.fast_network.label}",
                (bits, epoch(point.slow_network, bits)), (0, -14 - 52 * (number % 2)),  # neighbours may be close
                textcoords="offset points", ha="center", va="top",
                bbox={"color": "white", "pad": 1}, arrowprops={"arrowstyle": "-", "color": charts.GREY}, zorder=1,
            )  # fmt: skip
        low, high = axes.get_ylim()
        room = (0.2, 0.32)[len(changes) > 1] if changes else 0.0  # share of the height that is free for labels
        axes.set_ylim(low / (high / low) ** (room / (1 - room)), high)
        axes.set_title(
            f"{trained(runs)}:\n{workers:,} workers, latency {units.show_seconds(link.latency)}; rings: break-even points"
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.show_bits(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        figure.legend(loc="outside upper center", ncols=min(len(runs), 5))
        charts.write_at_foot(figure, source(runs, note))
        charts.save(figure, out.with_name(out.name + "-bandwidth"), console)


def source(runs: Sequence[Measured], note: str) -> str:
    """What the prediction was made from."""
    steps = sum(run.timed_steps for run in runs)
    measured = ", ".join(dict.fromkeys(f"{conditions(run)}, batch {run.batch_size} per worker" for run in runs))
    found = provenance.sentence(provenance.of([run.record for run in runs]))
    return f"{note} Predicted from {steps} steps measured with {measured}. {found}".strip()
