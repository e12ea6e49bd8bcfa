"""Where the time of a step goes, run by run: a table, CSV, Markdown and the stacked bars of the paper's Figure 4 (b)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pufferfish_bench.distributed import units
from pufferfish_bench.records import measured, provenance
from pufferfish_bench.records.files import SECTIONS
from pufferfish_bench.records.measured import PARTS, Measured
from pufferfish_bench.report import output
from pufferfish_bench.report.output import Sheet, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Breakdown of a step"
ACROSS = 3  # panels in a row


def groups(runs: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Runs under the same conditions, ordered by hosts and then by falling cap; a run outside the lab has no cap."""
    ordered = sorted(runs, key=lambda run: (run.hosts or 0, run.workers, -(run.cap or float("inf"))))
    found: dict[str, list[Measured]] = {}
    for run in ordered:
        found.setdefault(conditions(run), []).append(run)
    return found


def conditions(run: Measured) -> str:
    place = f"{run.workers} worker{'s' * (run.workers > 1)}" if run.hosts is None else f"{run.hosts} hosts"
    if run.hosts is not None and run.workers != run.hosts:
        place += f" with {run.workers} workers"
    return f"{place}, {units.show_bits(run.cap)}" if run.cap else place


def sheets(runs: Sequence[Measured]) -> list[Sheet]:
    """A table of the mean step and one of the epoch; each run is compared with the first run under the same conditions."""
    steps, epochs = [], []
    for place, group in groups(runs).items():
        for run in group:
            parts = [run.part(part) * run.steps for part in PARTS]
            steps.append(
                [f"{place}: {run.label}", *(number(1000 * run.seconds[section], "{:.1f}".format) for section in SECTIONS),
                 number(1000 * run.step_seconds, "{:.1f}".format), number(run.bytes_sent / 1e6, "{:.2f}".format)]
            )  # fmt: skip
            epochs.append(
                [f"{place}: {run.label}", number(run.steps, "{:,}".format),
                 *(number(seconds, "{:.2f}".format) for seconds in
                   (*parts, run.epoch_seconds, group[0].epoch_seconds / run.epoch_seconds))]
            )  # fmt: skip
    return [
        Sheet(
            f"Milliseconds per step: {measured.trained(runs)}",
            ["run", *SECTIONS, "total", "MB sent"],
            steps,
            "Mean over ranks and over the timed steps of one phase, by default the last. `step` is the optimizer's step; MB "
            f"(10^6 bytes) are what each rank passes to the collectives per step. {crowding(runs)}".strip(),
        ),
        Sheet(
            f"Seconds per epoch: {measured.trained(runs)}",
            ["run", "steps", *PARTS, "total", "times as fast"],
            epochs,
            "The mean step multiplied by the steps of an epoch; speed relative to the first run under the same conditions.",
        ),
    ]


def rows(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """All numbers as flat rows: seconds per step and per epoch."""
    return [
        {
            "label": run.label, "name": run.name, "phase": run.phase, "hosts": run.hosts, "workers": run.workers,
            "cap_bits_per_second": run.cap, "batch_size": run.batch_size, "steps": run.steps, "timed_steps": run.timed_steps,
            "bytes_sent_a_step": run.bytes_sent, "step_seconds": run.step_seconds, "epoch_seconds": run.epoch_seconds,
        }
        | {f"step_seconds_{section}": run.seconds[section] for section in SECTIONS}
        | {f"step_slowest_{section}": run.slowest[section] for section in SECTIONS}
        | {f"step_fastest_{section}": run.fastest[section] for section in SECTIONS}
        | {f"epoch_seconds_{section}": run.seconds[section] * run.steps for section in SECTIONS}
        for group in groups(runs).values()
        for run in group
    ]  # fmt: skip


def show(runs: Sequence[Measured], console: Console) -> None:
    """Print both tables."""
    measured.check_timed(runs)
    for sheet in sheets(runs):
        sheet.show(console)


def write(runs: Sequence[Measured], out: Path, console: Console, *, seeds: int = 1) -> None:
    """Write the tables as CSV and Markdown and the bars as PNG and SVG; `out` is their path without its ending.

    Each run may be the mean of several, with `seeds` different seeds.
    """
    measured.check_timed(runs)
    texts = {".csv": output.csv_text(rows(runs)), ".md": output.document(TITLE, sheets(runs), runs)}
    output.write(out, texts, console)
    draw(runs, out, console, seeds=seeds)


def draw(runs: Sequence[Measured], out: Path, console: Console, *, seeds: int) -> None:
    """The bars as PNG and SVG."""
    from pufferfish_bench.report import charts  # half a second of imports that tables do not need

    with charts.style():
        figure = bars(runs)
        words = (steps_behind(runs, seeds), crowding(runs), provenance.sentence(provenance.of([run.record for run in runs])))
        charts.write_at_foot(figure, " ".join(filter(None, words)))
        charts.save(figure, out, console)


def steps_behind(runs: Sequence[Measured], seeds: int) -> str:
    """How many timed steps are behind each bar."""
    fewest, most = (choose(run.timed_steps for run in runs) for choose in (min, max))
    steps = most if fewest == most else f"{fewest} to {most}"
    source = ", one run" if seeds == 1 else f" of each of {seeds} runs"
    return f"{measured.trained(runs)}. Mean of {steps} timed steps{source} per bar."


def crowding(runs: Sequence[Measured]) -> str:
    """Which hosts of the lab had more threads than cores, if any: they compute more slowly than separate machines would."""
    crowded = dict.fromkeys(f"{run.hosts} hosts" for run in runs if (run.threads_a_core or 0) > 1)
    return (
        f"{' and '.join(crowded)} have more threads than cores, so their computation is slower than on separate machines."
        if crowded
        else ""
    )


def rows_of_panels(runs: Sequence[Measured]) -> list[list[tuple[str, list[Measured]]]]:
    """The conditions and their runs, in rows: a new one for each number of hosts, and after ACROSS panels."""
    of_hosts: dict[tuple, list[tuple[str, list[Measured]]]] = {}
    for place, group in groups(runs).items():
        of_hosts.setdefault((group[0].hosts, group[0].workers), []).append((place, group))
    return [line[start : start + ACROSS] for line in of_hosts.values() for start in range(0, len(line), ACROSS)]


def bars(runs: Sequence[Measured]) -> "Figure":
    """A panel for each number of hosts and each cap with a stacked bar for each method: the parts of its epoch.

    Where epochs have different numbers of samples, the bars show a step.
    """
    from matplotlib.figure import Figure

    from pufferfish_bench.report import charts

    same_epochs = len({run.samples for run in runs}) == 1
    panels = rows_of_panels(runs)
    down, across = len(panels), max(map(len, panels))
    most = max(len(group) for row in panels for _, group in row)
    colours = dict(zip(PARTS, (charts.BLUE, charts.ORANGE, charts.GREY, charts.VERMILION), strict=True))
    width = max(5.5, across * (1.3 + 0.75 * most))
    figure = Figure(figsize=(width, 0.9 + 3.9 * down), layout="constrained")
    cells = [(row, column, *panel) for row, line in enumerate(panels) for column, panel in enumerate(line)]
    for row, column, place, group in cells:
        axes = figure.add_subplot(down, across, across * row + column + 1)
        base = [0.0] * len(group)
        for part in PARTS:
            heights = [run.part(part) * (run.steps if same_epochs else 1) for run in group]
            axes.bar(range(len(group)), heights, 0.7, bottom=base, color=colours[part], label=part)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        for position, total in enumerate(base):
            axes.annotate(f"{total:#.3g}".rstrip("."), (position, total), (0, 3), textcoords="offset points", ha="center")
        axes.set_title(place)
        axes.set_xticks(
            range(len(group)),
            [charts.in_lines(run.label) for run in group],
            rotation=35,
            ha="right",
            rotation_mode="anchor",
        )
        axes.set_xlim(-0.6, most - 0.4)  # the same bar width in every panel
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.12)
        if column == 0:
            axes.set_ylabel("seconds per epoch" if same_epochs else "seconds per step")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(PARTS) if width > 8 else 2)
    return figure
