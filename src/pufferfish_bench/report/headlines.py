"""What opens the page: accuracy over training time, and speed-up over bandwidth, each with the claims about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.distributed.units import show_bits
from pufferfish_bench.paper import bandwidth, curves, quantities
from pufferfish_bench.paper.outcome import Claim, Outcome
from pufferfish_bench.paper.tables import Headline
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import bandwidth_charts, cell_charts, charts, pictures
from pufferfish_bench.report.charts import Picture
from pufferfish_bench.report.claim_sheets import number

ACCURACY, SPEEDUP = "Accuracy over training time", "Speed-up over bandwidth"


@dataclass(frozen=True)
class Opening:
    """A picture with its sentence; without records, only a sentence that says what is missing."""

    title: str
    sentence: str
    picture: Picture | None = None
    source: Outcome | None = None  # the table with all numbers
    claims: Sequence[Claim] = ()


def draw(outcomes: Sequence[Outcome], folder: Path, console: Console) -> list[Opening]:
    """Both pictures, as files in `folder` too; of several tables that could be drawn, the first one."""
    return [accuracy(outcomes, folder, console), speedup(outcomes, folder, console)]


def accuracy(outcomes: Sequence[Outcome], folder: Path, console: Console) -> Opening:
    """The learning curves of the table that has a `headline`."""
    asked = [found for found in outcomes if found.table.headline]
    found = next((found for found in asked if len(trained(found)) > 1 and not with_company(found)), None)
    if found is None:
        return Opening(ACCURACY, " ".join(map(missing, asked)) or "No table has a headline in conf/table/.")
    records = trained(found)
    picture = Picture(folder / "headline-accuracy", f"{found.table.headline.title}: a line for each net")
    with charts.style():
        cells = [found.table.headline.cells[label] for label in records]
        pictures.finish(draw_accuracy(records), found, cells, picture, console)
    own = [
        claim for claim, _ in bandwidth.collected(found.claims)
        if {claim.relation.of, claim.relation.than} <= set(cells)
    ]  # fmt: skip
    left_out = [label for label in found.table.headline.cells if label not in records]
    words = [f"{found.table.headline.title}.", ends(records), *([f"Not run yet: {', '.join(left_out)}."] if left_out else [])]
    return Opening(ACCURACY, " ".join(words), picture, found, own)


def trained(found: Outcome) -> dict[str, tuple[Record, ...]]:
    """The records of the headline's cells that have a curve, by their labels; they have the metric of the first one."""
    headline: Headline = found.table.headline
    there = {label: found.records[cell] for label, cell in headline.cells.items() if found.records[cell]}
    metrics = [records[0].metric for records in there.values()]
    return {
        label: records
        for label, records in there.items()
        if records[0].metric == metrics[0] and all(len(record.rows) > 1 for record in records)
    }


def with_company(found: Outcome) -> bool:
    """Whether other processes ran beside the runs of the headline: its times would compare nothing."""
    return cell_charts.had_company(found, list(found.table.headline.cells.values()))


def missing(found: Outcome) -> str:
    """Which runs the picture waits for."""
    name, profile = found.table.name, found.table.profile
    waiting = [label for label, cell in found.table.headline.cells.items() if not found.records[cell]]
    return (
        f"There is no picture yet: it shows {found.table.headline.title} ({number(name)}), and needs finished runs of at least "
        f"two of its nets. Not run yet: {', '.join(waiting) or 'none'}. Run `make {name} PROFILE={profile}`, which draws it."
    )


def draw_accuracy(records: Mapping[str, Sequence[Record]]) -> Figure:
    """The mean curve of each net; its end with the 95 % interval; a dotted line at the end of a phase, when the net changes."""
    figure = Figure(figsize=(charts.WIDTH, 5), layout="constrained")
    axes = figure.subplots()
    shown = []
    for place, (label, runs) in enumerate(records.items()):
        look = charts.look(place)
        minutes, values = cell_charts.curve(runs)
        shown += values[len(values) // 3 :]
        axes.plot(minutes, values, color=look["color"], linewidth=1.5)
        end = final(runs)
        axes.errorbar([minutes[-1]], [end.mean], yerr=charts.error_bars([end]), capsize=4, label=label, **look)
        for before, after, moment in zip(runs[0].rows, runs[0].rows[1:], minutes, strict=False):
            if before["phase"] != after["phase"]:
                axes.axvline(moment, color=look["color"], linestyle=":", linewidth=1.5, zorder=0)
                words = f"{label}: {after['phase'].replace('_', ' ')}"
                beside = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
                axes.annotate(words, (moment, 0.99), (4, 0), fontsize=8, color="#555555", **beside)
    room = 0.08 * (max(shown) - min(shown)) or 1.0
    axes.set_ylim(min(shown) - room, max(shown) + room)  # the first third of the epochs may be out of sight: the ends matter
    axes.set_xlim(left=0)
    metric = next(iter(records.values()))[0].metric
    axes.set(xlabel="minutes of training", ylabel=quantities.label(metric))
    axes.legend(fontsize=9, ncols=len(records), loc="upper center", bbox_to_anchor=(0.45, -0.13), columnspacing=1.2)
    return figure


def final(records: Sequence[Record]) -> Sample:
    """The metric after the last epoch."""
    return Sample(tuple(record.rows[-1][record.metric] for record in records))


def ends(records: Mapping[str, Sequence[Record]]) -> str:
    """Where each curve ends, in words."""
    metric = quantities.quantity(next(iter(records.values()))[0].metric)
    found = []
    for label, runs in records.items():
        minutes, _ = cell_charts.curve(runs)
        found.append(f"{label} {metric.show(final(runs).mean)} after {minutes[-1]:.1f} minutes")
    return f"At the end ({metric.label}): {'; '.join(found)}."


def speedup(outcomes: Sequence[Outcome], folder: Path, console: Console) -> Opening:
    """The methods of the lab that were measured at two rates or more."""
    lab = [found for found in outcomes if found.table.picture == "lab"]
    found = next((found for found in lab if len(curves.curves(found)) > 1), None)
    if found is None:
        return Opening(SPEEDUP, " ".join(map(not_measured, lab)) or "No table in conf/table/ has `picture: lab`.")
    drawn = curves.curves(found)
    picture = Picture(folder / "headline-speedup", f"Speed-up over {drawn[0].label} over bandwidth: a line for each method")
    cells = [name for name, records in found.records.items() if records]
    with charts.style():
        pictures.finish(bandwidth_charts.draw_gains(found), found, cells, picture, console)
    own = [claim for claim, tests in bandwidth.collected(found.claims) if tests and claim.relation.quantity == curves.EPOCH]
    return Opening(SPEEDUP, gains(found.table.title, drawn), picture, found, own)


def not_measured(found: Outcome) -> str:
    name, profile = found.table.name, found.table.profile
    return (
        f"There is no picture yet: it needs finished runs of at least two methods at two bandwidths ({number(name)}). "
        f"Run `make {name} PROFILE={profile}`, which draws it."
    )


def gains(title: str, drawn: Sequence[curves.Curve]) -> str:
    """The speed-up of each method at the lowest and at the highest measured rate, in words."""
    base, *others = drawn
    rates = [bits for bits in base.measured if all(bits in curve.samples for curve in others)]
    if not rates:
        return f"{title}."
    ends = list(dict.fromkeys((rates[0], rates[-1])))
    found = [f"{curve.label} {' and '.join(f'{curves.speedup(curve, base, bits)[0]:.2f}x' for bits in ends)}" for curve in others]
    return f"{title}. Times as fast as {base.label} at {' and at '.join(map(show_bits, ends))}: {'; '.join(found)}."
