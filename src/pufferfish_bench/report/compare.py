"""Finished runs side by side, a row each, with the settings in which they differ."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pufferfish_bench.base.console import say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.flat import flat
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import EPOCHS, RUN, frozen
from pufferfish_bench.records.measured import short_names
from pufferfish_bench.records.record import Record, other_figures
from pufferfish_bench.report import tables

SPEED = "times as fast"
FIGURES = ("parameters", "MACs", "seconds per epoch", "total seconds", SPEED, "metric", "last", "best", "others")
DISPENSABLE = ("others", "metric", "MACs", "best", "total seconds")  # a narrow terminal leaves these out before settings
SHOWN_IN_NAME = ("model.net._target_", "dataset._target_", "method._target_")
UNEQUAL = "*"  # marks the speed of a run that has another number of epochs than the first


def differing(all_settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings in which runs differ, with their value in each run; top-level settings first.

    Left out: the name, which is composed of other settings, and those it shows already; copies of another setting under the same
    name (dataset.seed: seed); and, where runs differ in what they build (`method._target_`), settings that only some runs have.
    """
    runs = [flat(settings) for settings in all_settings]
    keys = list(dict.fromkeys(key for run in runs for key in run if key != "name"))
    values = {key: [json.dumps(run[key]) if key in run else None for run in runs] for key in keys}
    values = {key: found for key, found in values.items() if len(set(found)) > 1}
    built = [key.removesuffix("_target_") for key in values if key.endswith("._target_")]
    names = [run.get("name") for run in runs]
    chosen: dict[str, list[str]] = {}
    for key in sorted(values, key=lambda key: key.count(".")):  # stable: in the order of the settings
        copied = {other.rpartition(".")[2]: values[other] for other in chosen}
        own = any(key.startswith(group) and None in values[key] for group in built)
        named = key in SHOWN_IN_NAME and len(set(zip(names, values[key], strict=True))) == len(set(names))
        if not own and not named and copied.get(key.rpartition(".")[2]) != values[key]:
            chosen[key] = [word(key, run[key]) if key in run else "" for run in runs]
    return {key.removesuffix("._target_"): found for key, found in chosen.items()}


def word(key: str, value: Any) -> str:
    """A setting as given on the command line; for a `_target_`, only its last name."""
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    return value.rpartition(".")[2] if key.endswith("_target_") else value


def labels(names: Sequence[str], directories: Sequence[Path]) -> list[str]:
    """Short names that distinguish the runs; seeds are left out, as they have a column."""
    without_seeds = [re.sub(r"-seed\d+$", "", name) for name in names]
    if len(set(without_seeds)) > 1:
        short = short_names(without_seeds)
        return [short[name] for name in without_seeds]
    folders = [directory.resolve().name for directory in directories]
    short = short_names(folders)
    return [short[folder] for folder in folders]


def compare(directories: Sequence[Path]) -> tuple[Table, list[str], str]:
    """A table with a row for each run (an unfinished run says so), the columns that a narrow terminal leaves out, in the order in
    which they go, and a note on how to read the table."""
    records = [Record.read(directory) for directory in directories]
    settings = [settings_of(record) for record in records]
    columns = differing(settings)
    names = labels([each["name"] for each in settings], directories)
    lengths = [len(record.rows) if "summary" in record.run else None for record in records]
    unequal = len({length for length in lengths if length is not None}) > 1
    if unequal:
        columns["epochs"] = ["" if length is None else str(length) for length in lengths]
    table = tables.table("run", *columns, *FIGURES, left=(0, len(columns) + 1 + FIGURES.index("metric")))
    for place, record in enumerate(records):
        own = [found[place] for found in columns.values()]
        incomplete = " (incomplete)" * bool("summary" in record.run and record.missing_epochs)
        table.add_row(names[place] + incomplete, *own, *figures_of(record, records[0]))
    note = f"{SPEED}: the total time of the first run divided by that of this one, with all epochs and surgery."
    if unequal:
        note += f" {UNEQUAL} This run has another number of epochs than the first."
    return table, [*DISPENSABLE, *reversed(columns)], note


def settings_of(record: Record) -> Mapping[str, Any]:
    """The settings of a training run; other records are refused."""
    settings = record.run["settings"]
    if "name" not in settings:
        raise InputError(f"the record in {record.folder} is not that of a training run: its settings have no name")
    return settings


def figures_of(record: Record, first: Record) -> list[str]:
    """The columns of a run besides its settings."""
    if "summary" not in record.run:
        return ["not finished", *[""] * (len(FIGURES) - 1)]
    if not record.rows:
        raise InputError(f"the run in {record.folder} is finished, but its {EPOCHS} is missing or empty")
    with reader.asking(record.folder):
        summary, metric, trained = record.summary, record.metric, frozen(record.summary)
        speed = ""
        if "summary" in first.run:
            speed = f"{first.total_seconds / record.total_seconds:.2f}x" + UNEQUAL * (len(record.rows) != len(first.rows))
        return [
            f"{summary.get('nonzero_parameters', summary['parameters']):,}" + (f" ({trained})" if trained else ""),
            f"{summary['macs']:,}",
            f"{summary['seconds_per_epoch']:.1f}",
            f"{record.total_seconds:.0f}",
            speed,
            metric,
            f"{summary[metric]:.2f}",
            f"{summary[f'best_{metric}']:.2f}",
            ", ".join(f"{name} {value:.2f}" for name, value in other_figures(summary, metric).items()),
        ]


def directories_of(given: Sequence[Path]) -> list[Path]:
    """The given paths without plain files, which a pattern such as results/runs/* matches too."""
    found = [path for path in given if not path.is_file()]
    if not found:
        raise InputError(f"{given[0]} is a file; give the directory of a run, which contains {RUN}")
    return found


def show(runs: Sequence[Path], console: Console) -> None:
    """Print the comparison and the directories of the runs."""
    directories = directories_of(runs)
    table, dispensable, note = compare(directories)
    tables.show(table, console, dispensable=dispensable)
    say(note, console)
    for directory in directories:
        say(f"files: {directory}", console)
