"""Beyond the machine: what measured methods would take with other workers on another network, and how far that can be trusted.

Every run is first predicted under its own conditions and from runs under other conditions, beside what was measured.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from pufferfish_bench.errors import InputError
from pufferfish_bench.report import measured, output, units
from pufferfish_bench.report.breakdown import conditions
from pufferfish_bench.report.measured import Link, Measured
from pufferfish_bench.report.output import Sheet
from pufferfish_bench.report.prediction import (
    break_even,
    check_predictable,
    epoch_seconds,
    epoch_steps,
    error,
    step_seconds,
    uniform,
)
from pufferfish_bench.speech import VERSION, spoken_errors

TITLE = "What if: other workers, another network"
ASSUMED = (
    "A step is computation, waiting and encoding as measured, then the collectives one after the other (a ring: latency and "
    "bandwidth, no overlap), then decoding, which for a gathered message grows with the workers. A worker's batch stays, so an "
    "epoch has samples / (workers x batch) steps, rounded up. Not foreseen: slower ranks in larger clusters, shared switches, "
    "collectives by trees, which have less latency."
)


def sources(run: Measured, runs: Sequence[Measured]) -> dict[str, Measured | None]:
    """From which runs of the same method a run is predicted: from itself, under another cap, with other workers."""
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


def check_sheet(runs: Sequence[Measured]) -> Sheet:
    """The predictions beside the measurements, a row a run, and in the note how far off they are on the whole."""
    found, kinds = checks(runs), ("itself", "another cap", "other workers")
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for check in found:
        lines.setdefault((check["conditions"], check["label"]), {})[check["source"]] = check
    rows = []
    for (place, label), line in lines.items():
        cells = [f"{1000 * line[kind]['predicted']:.1f} ({line[kind]['error']:+.1%})" if kind in line else "" for kind in kinds]
        rows.append([f"{place}: {label}", f"{1000 * line['itself']['measured']:.1f}", *cells])
    notes = []
    for kind in kinds:
        wrong = [abs(check["error"]) for check in found if check["source"] == kind]
        if wrong:
            notes.append(f"from {kind} {median(wrong):.1%} (at most {max(wrong):.1%}, {len(wrong)} runs)")
    return Sheet(
        "The model against the lab: milliseconds a step",
        ["run", "measured", *(f"from {kind}" for kind in kinds)],
        rows,
        f"Median error {'; '.join(notes)}. The network is the fit of the run's own micro-benchmark; computation, encoding and "
        "decoding are those of the same method measured here, under another cap, or with other workers (there multiplied by the "
        "threads for each core, where the hosts of the lab share too few). A run without measure_wait=true has its waiting in "
        "`communicate`, where the model does not expect it."
        if rows
        else "No run has a measured network (run.json: network), so nothing below has been checked.",
    )


def epoch_rows(runs: Sequence[Measured], workers: Sequence[int], link: Link, samples: int) -> list[dict[str, Any]]:
    """The predicted step and epoch of each method for each number of workers, how many times as fast that is as the first method,
    and as the same method with the fewest workers (scaling)."""
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
    """The paper's Figure 4 (c) as a table, and on to as many workers as asked for."""
    cells = [
        f"{units.show_seconds(row['epoch_seconds'])} ({row['times_as_fast']:.2f}x)"
        for row in epoch_rows(runs, workers, link, samples)
    ]
    network = f"{units.show_bits(8 * link.bandwidth)} and {units.show_seconds(link.latency)} latency"
    return Sheet(
        f"Predicted epoch of {measured.trained(runs)}, with {samples:,} samples, at {network}",
        ["workers", *(run.label for run in runs)],
        [[f"{n:,}", *cells[number * len(runs) :][: len(runs)]] for number, n in enumerate(workers)],
        f"In brackets: times as fast as {runs[0].label}. {ASSUMED} {made_of(runs)}",
    )


def made_of(runs: Sequence[Measured]) -> str:
    """From which measurements a prediction is made."""
    found = (f"{run.label}: {run.name}, {conditions(run)}, batch {run.batch_size}, {run.timed_steps} timed steps" for run in runs)
    return f"Predicted from measured steps of {'; '.join(found)}."


def break_even_sheet(runs: Sequence[Measured], workers: Sequence[int], latency: float) -> Sheet:
    """For every two methods and number of workers, the bandwidth at which they are equally fast."""
    pairs = []
    for one, other in combinations(runs, 2):
        winner = break_even(one, other, workers[0], latency).slow_network
        pairs.append((one, other) if winner is one else (other, one))

    def cell(one: Measured, other: Measured, n: int) -> str:
        point = break_even(one, other, n, latency)
        if point.bandwidth is None:
            return "always" if point.slow_network is one else "never"
        return f"{'<' if point.slow_network is one else '>'} {units.show_bits(8 * point.bandwidth)}"

    return Sheet(
        f"The bandwidths at which one method is faster than another for {measured.trained(runs)}, at "
        f"{units.show_seconds(latency)} latency",
        ["faster", *(f"{n:,} workers" for n in workers)],
        [[f"{one.label} than {other.label}", *(cell(one, other, n) for n in workers)] for one, other in pairs],
        "At the bandwidth itself, the break-even point, both take equally long.",
    )


def common_samples(runs: Sequence[Measured]) -> int:
    """The samples of an epoch, if the runs agree on it."""
    found = {run.samples for run in runs}
    if len(found) > 1:
        raise InputError(
            f"the runs' epochs have {', '.join(map(str, sorted(found)))} samples: say with --samples which to predict"
        )
    return found.pop()


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="pufferfish-whatif", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN",
        help="the directory of a measured run, or LABEL=DIRECTORY; predictions are made from the first run of each method",
    )  # fmt: skip
    parser.add_argument("--workers", default="2,4,8,16,64,256,1024", metavar="N,N,...", help="default: %(default)s")
    parser.add_argument("--bandwidth", default="10gbit", help="of a worker's link; default: %(default)s, as in the paper")
    parser.add_argument("--latency", default="50us", help="of a message; default: %(default)s")
    parser.add_argument("--samples", type=int, metavar="N", help="of an epoch; default: as the runs had")
    parser.add_argument(
        "--at", type=int, default=16, metavar="N", help="workers of the chart over bandwidth; default: %(default)s"
    )
    parser.add_argument("--note", default="", help="what else a reader should know, for the tables and the charts")
    parser.add_argument("--phase", help="the phase to predict from (default: a run's last)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER/NAME", help="write tables and charts there, their names begin with NAME"
    )
    given = parser.parse_args(words)
    console = Console()
    with spoken_errors():
        workers, link = units.counts(given.workers), Link(units.seconds(given.latency), units.bandwidth(given.bandwidth))
        for option in ("samples", "at"):
            if (value := getattr(given, option)) is not None and value < 1:
                raise InputError(f"--{option} {value} must be at least 1")
        runs = measured.read(given.runs, phase=given.phase)
        measured.check_timed(runs)
        for run in runs:
            check_predictable(run)
        first = list({run.label: run for run in reversed(runs)}.values())[::-1]  # of each method, in the order given
        samples = given.samples or common_samples(first)
        predicted = epoch_sheet(first, workers, link, samples)
        shown = [check_sheet(runs), replace(predicted, note=f"{given.note} {predicted.note}".strip())]
        if len(first) > 1:
            shown.append(break_even_sheet(first, workers, link.latency))
        for sheet in shown:
            sheet.show(console)
        if given.out:
            texts = {
                ".csv": output.csv_text(epoch_rows(first, workers, link, samples)),
                **({"-check.csv": output.csv_text(found)} if (found := checks(runs)) else {}),
                ".md": output.document(TITLE, shown, runs),
            }
            output.write(given.out, texts, console)
            from pufferfish_bench.report import whatif_charts  # half a second of imports that the tables do not need

            whatif_charts.over_workers(first, workers, link, samples, given.out, console, note=given.note)
            whatif_charts.over_bandwidth(first, given.at, link, samples, given.out, console, note=given.note)


def run() -> None:
    """The command pufferfish-whatif."""
    with spoken_errors():
        main(sys.argv[1:])


if __name__ == "__main__":
    run()
