"""Runs side by side: `python -m pufferfish_bench.report.compare DIR DIR ...`."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pufferfish_bench.records import RUN, others, read_json
from pufferfish_bench.report import tables


def compare(directories: list[Path]) -> Table:
    """A table with a row for each finished run."""
    columns = ("run", "parameters", "MACs", "seconds an epoch", "in all", "of the first", "metric", "last", "best", "further")
    table = tables.table(*columns)
    first = None
    for directory in directories:
        record = read_json(directory / RUN)
        summary = record.get("summary")
        if summary is None:
            table.add_row(record["settings"]["name"], "not finished", *[""] * (len(columns) - 2))
            continue
        first = first or summary["seconds"]
        metric = summary["metric"]
        table.add_row(
            record["settings"]["name"],
            f"{summary.get('nonzero_parameters', summary['parameters']):,}",
            f"{summary['macs']:,}",
            f"{summary['seconds_per_epoch']:.1f}",
            f"{summary['seconds']:.0f}",
            f"{summary['seconds'] / first:.2f}x",
            metric,
            f"{summary[metric]:.2f}",
            f"{summary[f'best_{metric}']:.2f}",
            ", ".join(f"{name} {value:.2f}" for name, value in others(summary, metric).items()),
        )
    return table


def main(arguments: list[str]) -> None:
    directories = [Path(argument) for argument in arguments]
    missing = [str(directory) for directory in directories if not (directory / RUN).exists()]
    if missing or not directories:
        sys.exit(f"no run in {', '.join(missing)}" if missing else __doc__)
    console = Console()
    tables.show(compare(directories), console)
    for directory in directories:
        console.print(f"files: {directory}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
