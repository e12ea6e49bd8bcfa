"""Finished runs side by side, a row each."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, frozen, others
from pufferfish_bench.report import tables
from pufferfish_bench.report.measured import load
from pufferfish_bench.report.quantities import in_all
from pufferfish_bench.speech import say, spoken_errors

COLUMNS = ("run", "parameters", "MACs", "seconds an epoch", "in all", "of the first", "metric", "last", "best", "further")


def compare(directories: Sequence[Path]) -> Table:
    """A table with a row for each run; one that is not finished says so."""
    table = tables.table(*COLUMNS)
    first = None  # seconds, if it is finished
    for place, directory in enumerate(directories):
        record, rows = load(directory)
        with checked.asking(directory):
            name, summary = record["settings"]["name"], record.get("summary")
            if summary is None:
                table.add_row(name, "not finished", *[""] * (len(COLUMNS) - 2))
                continue
            if not rows:
                raise InputError(f"the run in {directory} is finished, but {EPOCHS} is missing or empty")
            seconds = in_all(record, rows)
            if place == 0:
                first = seconds
            metric, trained = summary["metric"], frozen(summary)
            table.add_row(
                name + " (incomplete)" * bool(checked.missing_epochs(record, rows)),
                f"{summary.get('nonzero_parameters', summary['parameters']):,}" + (f" ({trained})" if trained else ""),
                f"{summary['macs']:,}",
                f"{summary['seconds_per_epoch']:.1f}",
                f"{seconds:.0f}",
                f"{seconds / first:.2f}x" if first else "",
                metric,
                f"{summary[metric]:.2f}",
                f"{summary[f'best_{metric}']:.2f}",
                ", ".join(f"{name} {value:.2f}" for name, value in others(summary, metric).items()),
            )
    return table


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="pufferfish-compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a run")
    given = parser.parse_args(words)
    console = Console()
    with spoken_errors():
        tables.show(compare(given.runs), console)
        for directory in given.runs:
            say(f"files: {directory}", console)


def run() -> None:
    """The command pufferfish-compare."""
    main(sys.argv[1:])


if __name__ == "__main__":
    run()
