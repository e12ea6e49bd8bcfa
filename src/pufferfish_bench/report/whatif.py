"""Predictions for other numbers of workers and other networks, with a check of the model against measurements.

Every run is first predicted under its own conditions and from runs under other conditions, beside its measured time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import units
from pufferfish_bench.distributed.prediction import (
    break_even,
    check_predictable,
    epoch_seconds,
    epoch_steps,
    error,
    step_seconds,
    uniform,
)
from pufferfish_bench.records import measured
from pufferfish_bench.records.measured import Link, Measured
from pufferfish_bench.report import output
from pufferfish_bench.report.breakdown import conditions
from pufferfish_bench.report.output import EMPTY, Cell, Sheet, number

TITLE = "What if: other workers, another network"
ASSUMED = (
    "The model: a step is computation, waiting and encoding as measured, then the collectives one after the other (ring "
    "algorithm, latency and bandwidth, no overlap), then decoding, whose time grows with the workers if messages are gathered. "
    "The batch size per worker is constant, so an epoch has samples / (workers x batch) steps, rounded up. Not modelled: "
    "stragglers in larger clusters, shared switches, tree algorithms with lower latency."
)


def sources(run: Measured, runs: Sequence[Measured]) -> dict[str, Measured | None]:
    """The runs of the same method that a run is predicted from: itself, one with another cap, one with other workers."""
    others = [other for other in runs if other.label == run.label and other.conditions != run.conditions]
    capped = [other for other in others if (other.workers, other.hosts) == (run.workers, run.hosts)]
    counted = sorted((other for other in others if other.workers != run.workers), key=lambda other: other.cap != run.cap)
    return {"itself": run, "another cap": next(iter(capped), None), "other workers": next(iter(counted), None)}


def checks(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """Each run whose network was measured: its step, and its prediction from every source, with the relative error."""
    found = []
    for run in runs:
        if not {kind for kind, _ in run.messages} <= set(run.links):
            continue
        for source, other in sources(run, runs).items():
            if other is not None:
                predicted, wrong = error(run, other)
                found.append(
                    {"label": run.label, "conditions": conditions(run), "measured": run.step_seconds, "source": source,
                     "source_conditions": conditions(other), "predicted": predicted, "error": wrong}
                )  # fmt: skip
    return found


def predicted_cell(check: Mapping[str, Any]) -> Cell:
    milliseconds = 1000 * check["predicted"]
    return Cell(f"{milliseconds:.1f} ({check['error']:+.1%})", milliseconds)


def check_sheet(runs: Sequence[Measured]) -> Sheet:
    """Predictions beside measurements, one row per run; the note gives the median errors."""
    found, kinds = checks(runs), ("itself", "another cap", "other workers")
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for check in found:
        lines.setdefault((check["conditions"], check["label"]), {})[check["source"]] = check
    rows = []
    for (place, label), line in lines.items():
        cells = [predicted_cell(line[kind]) if kind in line else EMPTY for kind in kinds]
        rows.append([f"{place}: {label}", number(1000 * line["itself"]["measured"], "{:.1f}".format), *cells])
    notes = []
    for kind in kinds:
        wrong = [abs(check["error"]) for check in found if check["source"] == kind]
        if wrong:
            notes.append(f"from {kind} {median(wrong):.1%} (at most {max(wrong):.1%}, {len(wrong)} runs)")
    return Sheet(
        "The model against measurements: milliseconds per step",
        ["run", "measured", *(f"from {kind}" for kind in kinds)],
        rows,
        f"Median error {'; '.join(notes)}. The network parameters are fitted to the run's own micro-benchmark; computation, "
        "encoding and decoding come from the same run, from one with another cap, or from one with other workers (scaled by the "
        "threads per core if the hosts of the lab share cores). Without measure_wait=true, waiting is part of `communicate`, "
        "which the model does not account for."
        if rows
        else "No run has a measured network (run.json: network), so the predictions below are unchecked.",
    )


def epoch_rows(runs: Sequence[Measured], workers: Sequence[int], link: Link, samples: int) -> list[dict[str, Any]]:
    """The predicted step and epoch of each method for each number of workers, its speedup over the first method, and its speedup
    over the fewest workers (scaling)."""
    links = uniform(link)
    return [
        {
            "workers": n, "bandwidth_bits_per_second": link.bandwidth * 8, "latency_seconds": link.latency, "samples": samples,
            "label": run.label, "name": run.name, "batch_size": run.batch_size, "steps": epoch_steps(run, n, samples),
            "step_seconds": step_seconds(run, n, links), "epoch_seconds": epoch_seconds(run, n, links, samples),
            "times_as_fast": epoch_seconds(runs[0], n, links, samples) / epoch_seconds(run, n, links, samples),
            "scaling": epoch_seconds(run, workers[0], links, samples) / epoch_seconds(run, n, links, samples),
        }
        for n in workers
        for run in runs
    ]  # fmt: skip


def epoch_sheet(runs: Sequence[Measured], workers: Sequence[int], link: Link, samples: int) -> Sheet:
    """The paper's Figure 4 (c) as a table, for any numbers of workers."""
    cells = [
        Cell(f"{units.show_seconds(row['epoch_seconds'])} ({row['times_as_fast']:.2f}x)", row["epoch_seconds"])
        for row in epoch_rows(runs, workers, link, samples)
    ]
    network = f"{units.show_bits(8 * link.bandwidth)} and {units.show_seconds(link.latency)} latency"
    return Sheet(
        f"Predicted epoch of {measured.trained(runs)}, with {samples:,} samples, at {network}",
        ["workers", *(run.label for run in runs)],
        [[number(n, "{:,}".format), *cells[place * len(runs) :][: len(runs)]] for place, n in enumerate(workers)],
        f"In brackets: speedup over {runs[0].label}. {ASSUMED} {made_of(runs)}",
    )


def made_of(runs: Sequence[Measured]) -> str:
    """The measurements that a prediction is made from."""
    found = (f"{run.label}: {run.name}, {conditions(run)}, batch {run.batch_size}, {run.timed_steps} timed steps" for run in runs)
    return f"Predicted from measured steps of {'; '.join(found)}."


def break_even_sheet(runs: Sequence[Measured], workers: Sequence[int], latency: float) -> Sheet:
    """For every two methods and number of workers, the bandwidth at which they are equally fast."""
    pairs = []
    for one, other in combinations(runs, 2):
        winner = break_even(one, other, workers[0], latency).slow_network
        pairs.append((one, other) if winner is one else (other, one))

    def cell(one: Measured, other: Measured, n: int) -> Cell:
        point = break_even(one, other, n, latency)
        if point.bandwidth is None:
            return Cell("always" if point.slow_network is one else "never")
        text = f"{'<' if point.slow_network is one else '>'} {units.show_bits(8 * point.bandwidth)}"
        return Cell(text, point.bandwidth)

    return Sheet(
        f"Bandwidths at which one method is faster than another: {measured.trained(runs)}, at "
        f"{units.show_seconds(latency)} latency",
        ["faster", *(f"{n:,} workers" for n in workers)],
        [[f"{one.label} than {other.label}", *(cell(one, other, n) for n in workers)] for one, other in pairs],
        "At the bandwidth itself, the break-even point, both take the same time.",
    )


def common_samples(runs: Sequence[Measured]) -> int:
    """The samples of an epoch, if all runs have the same number."""
    found = {run.samples for run in runs}
    if len(found) > 1:
        raise InputError(
            f"the runs' epochs have {', '.join(map(str, sorted(found)))} samples; choose the number to predict for with --samples"
        )
    return found.pop()


@dataclass(frozen=True)
class Forecast:
    """What was asked, and the runs it is answered from."""

    runs: Sequence[Measured]
    methods: Sequence[Measured]  # the first run of each label: predictions are made from these
    workers: Sequence[int]
    link: Link
    samples: int  # in an epoch
    note: str

    @property
    def sheets(self) -> list[Sheet]:
        """The check against measurements, the predicted epochs, and the break-even points where there are two methods."""
        predicted = epoch_sheet(self.methods, self.workers, self.link, self.samples)
        shown = [check_sheet(self.runs), replace(predicted, note=f"{self.note} {predicted.note}".strip())]
        return [*shown, break_even_sheet(self.methods, self.workers, self.link.latency)] if len(self.methods) > 1 else shown


def forecast(
    runs: Sequence[Measured], *, workers: Sequence[int], link: Link, samples: int | None = None, note: str = ""
) -> Forecast:
    """Refuse runs that nothing can be predicted from; an epoch has as many samples as theirs unless `samples` is given."""
    measured.check_timed(runs)
    for run in runs:
        check_predictable(run)
    methods = list({run.label: run for run in reversed(runs)}.values())[::-1]  # in the order given
    return Forecast(runs, methods, workers, link, samples or common_samples(methods), note)


def show(asked: Forecast, console: Console) -> None:
    """Print all tables."""
    for sheet in asked.sheets:
        sheet.show(console)


def write(asked: Forecast, out: Path, console: Console, *, at: int = 16) -> None:
    """Write tables as CSV and Markdown and the charts; `out` begins their paths, `at` is the workers of the bandwidth chart."""
    found = checks(asked.runs)
    texts = {
        ".csv": output.csv_text(epoch_rows(asked.methods, asked.workers, asked.link, asked.samples)),
        **({"-check.csv": output.csv_text(found)} if found else {}),
        ".md": output.document(TITLE, asked.sheets, asked.runs),
    }
    output.write(out, texts, console)
    from pufferfish_bench.report import whatif_charts  # half a second of imports that the tables do not need

    whatif_charts.over_workers(asked.methods, asked.workers, asked.link, asked.samples, out, console, note=asked.note)
    whatif_charts.over_bandwidth(asked.methods, at, asked.link, asked.samples, out, console, note=asked.note)
