"""Finished runs side by side, a row each, with the settings in which they differ."""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, RUN, frozen, others
from pufferfish_bench.report import tables
from pufferfish_bench.report.measured import load, short_names
from pufferfish_bench.report.quantities import in_all
from pufferfish_bench.settings import with_later
from pufferfish_bench.speech import VERSION, say, spoken_errors

SPEED = "times as fast"
FIGURES = ("parameters", "MACs", "seconds an epoch", "in all", SPEED, "metric", "last", "best", "further")
DISPENSABLE = ("further", "metric", "MACs", "best", "in all")  # what a narrow terminal does without before it drops settings
TOLD_BY_NAME = ("model._target_", "dataset._target_", "method._target_")
UNEQUAL = "*"  # beside the speed of a run that has other epochs than the first


def flat(settings: Any, key: str = "") -> dict[str, Any]:
    """Settings by their dotted keys; a list is one value."""
    if not isinstance(settings, Mapping):
        return {key: settings}
    return {
        dotted: value for name, below in settings.items() for dotted, value in flat(below, f"{key}.{name}".lstrip(".")).items()
    }


def differing(all_settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings in which runs differ, with their value in each run; those at the top first.

    Left out: the name, which is made of others, and what it says already; what another setting hands on under the same name
    (dataset.seed: seed); and, where runs differ in what they build (`method._target_`), the settings that only some of them have.
    """
    runs = [flat(with_later(settings)) for settings in all_settings]
    keys = list(dict.fromkeys(key for run in runs for key in run if key not in ("name", "dataset.sample")))
    values = {key: [json.dumps(run[key]) if key in run else None for run in runs] for key in keys}
    values = {key: found for key, found in values.items() if len(set(found)) > 1}
    built = [key.removesuffix("_target_") for key in values if key.endswith("._target_")]
    names = [run.get("name") for run in runs]
    chosen: dict[str, list[str]] = {}
    for key in sorted(values, key=lambda key: key.count(".")):  # stable: in the order of the settings
        handed_on = {other.rpartition(".")[2]: values[other] for other in chosen}
        own = any(key.startswith(group) and None in values[key] for group in built)
        named = key in TOLD_BY_NAME and len(set(zip(names, values[key], strict=True))) == len(set(names))
        if not own and not named and handed_on.get(key.rpartition(".")[2]) != values[key]:
            chosen[key] = [word(key, run[key]) if key in run else "" for run in runs]
    return {key.removesuffix("._target_"): found for key, found in chosen.items()}


def word(key: str, value: Any) -> str:
    """A setting as it is given on the command line; of what it builds, the name alone."""
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    return value.rpartition(".")[2] if key.endswith("_target_") else value


def labels(names: Sequence[str], directories: Sequence[Path]) -> list[str]:
    """Short names that tell runs apart where their settings do not: seeds have a column."""
    without_seeds = [re.sub(r"-seed\d+$", "", name) for name in names]
    if len(set(without_seeds)) > 1:
        short = short_names(without_seeds)
        return [short[name] for name in without_seeds]
    folders = [directory.resolve().name for directory in directories]
    short = short_names(folders)
    return [short[folder] for folder in folders]


def compare(directories: Sequence[Path]) -> tuple[Table, list[str], str]:
    """A table with a row for each run, where one that is not finished says so; the columns that a narrow terminal does without,
    the first first; and what must be known to read it."""
    loaded = [load(directory) for directory in directories]
    try:
        settings = [record["settings"] for record, _ in loaded]
        columns = differing(settings)
        names = labels([each["name"] for each in settings], directories)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the record in {odd(directories, loaded)} is not that of a training run: {error!r}") from error
    lengths = [len(rows) if "summary" in record else None for record, rows in loaded]
    unequal = len({length for length in lengths if length is not None}) > 1
    if unequal:
        columns["epochs"] = ["" if length is None else str(length) for length in lengths]
    table = tables.table("run", *columns, *FIGURES, left=(0, len(columns) + 1 + FIGURES.index("metric")))
    for place, (directory, (record, rows)) in enumerate(zip(directories, loaded, strict=True)):
        own = [found[place] for found in columns.values()]
        incomplete = " (incomplete)" * bool(record.get("summary") and checked.missing_epochs(record, rows))
        table.add_row(names[place] + incomplete, *own, *figures_of(directory, record, rows, *loaded[0]))
    note = f"{SPEED}: the seconds of the first run divided by those of this one, all epochs and surgeries of each."
    if unequal:
        note += f" {UNEQUAL} This run has another number of epochs than the first."
    return table, [*DISPENSABLE, *reversed(columns)], note


def figures_of(directory: Path, record: dict, rows: list, first: dict, first_rows: list) -> list[str]:
    """What the table says of a run beside its settings."""
    try:
        summary = record.get("summary")
        if summary is None:
            return ["not finished", *[""] * (len(FIGURES) - 1)]
        if not rows:
            raise InputError(f"the run in {directory} is finished, but {EPOCHS} is missing or empty")
        seconds, metric, trained = in_all(record, rows), summary["metric"], frozen(summary)
        speed = ""
        if "summary" in first:
            speed = f"{in_all(first, first_rows) / seconds:.2f}x" + UNEQUAL * (len(rows) != len(first_rows))
        return [
            f"{summary.get('nonzero_parameters', summary['parameters']):,}" + (f" ({trained})" if trained else ""),
            f"{summary['macs']:,}",
            f"{summary['seconds_per_epoch']:.1f}",
            f"{seconds:.0f}",
            speed,
            metric,
            f"{summary[metric]:.2f}",
            f"{summary[f'best_{metric}']:.2f}",
            ", ".join(f"{name} {value:.2f}" for name, value in others(summary, metric).items()),
        ]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"the record in {directory} is not that of a training run: {error!r}") from error


def odd(directories: Sequence[Path], loaded: Sequence[tuple[Any, Any]]) -> Path:
    """The first directory whose record has no settings with a name."""
    for directory, (record, _) in zip(directories, loaded, strict=True):
        settings = record.get("settings") if isinstance(record, dict) else None
        if not (isinstance(settings, dict) and isinstance(settings.get("name"), str)):
            return directory
    return directories[0]


def directories_of(given: Sequence[Path]) -> list[Path]:
    """What is given without its plain files: a pattern such as results/runs/* finds those too."""
    found = [path for path in given if not path.is_file()]
    if not found:
        raise InputError(f"{given[0]} is a file: give the directory of a run, which holds {RUN}")
    return found


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="pufferfish-compare", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a run; plain files are passed over")
    given = parser.parse_args(words)
    console = Console()
    with spoken_errors():
        directories = directories_of(given.runs)
        table, dispensable, note = compare(directories)
        tables.show(table, console, dispensable=dispensable)
        say(note, console)
        for directory in directories:
            say(f"files: {directory}", console)


def run() -> None:
    """The command pufferfish-compare."""
    with spoken_errors():
        main(sys.argv[1:])


if __name__ == "__main__":
    run()
