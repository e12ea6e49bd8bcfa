"""Runs side by side, a row each, with the settings in which they differ; the best value of each column is marked."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pufferfish_bench.base.console import complain, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.flat import flat
from pufferfish_bench.records import finding, reader
from pufferfish_bench.records.files import EPOCHS, RUN, frozen
from pufferfish_bench.records.measured import short_names
from pufferfish_bench.records.record import Record, other_figures
from pufferfish_bench.report import tables
from pufferfish_bench.report.output import EMPTY, Cell, number

SPEED = "times as fast"
FIGURES = ("parameters", "MACs", "seconds per epoch", "total seconds", SPEED, "metric", "last", "best", "others")
DISPENSABLE = ("others", "metric", "MACs", "best", "total seconds")  # a narrow terminal leaves these out before settings
SHOWN_IN_NAME = ("model.net._target_", "dataset._target_", "method._target_")
BEST = "★"
UNEQUAL = "*"  # marks the speed of a run that has another number of epochs than the one it is compared with


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


def compare(records: Sequence[Record], title: str | None = None) -> tuple[Table, list[str], str]:
    """A table with a row for each run, the columns that a narrow terminal leaves out, in the order in which they go, and a note
    on how to read the table."""
    settings = [settings_of(record) for record in records]
    columns = differing(settings)
    names = names_of(records)
    lengths = [len(record.rows) if "summary" in record.run else None for record in records]
    unequal = len({length for length in lengths if length is not None}) > 1
    if unequal:
        columns["epochs"] = ["" if length is None else str(length) for length in lengths]
    table = tables.table("run", *columns, *FIGURES, title=title, left=(0, len(columns) + 1 + FIGURES.index("metric")))
    reference = next((place for place, record in enumerate(records) if "summary" in record.run), None)
    rows = [figures_of(record, records[reference or 0]) for record in records]
    marked = mark_best(records, rows)
    for place, row in enumerate(rows):
        table.add_row(names[place], *(found[place] for found in columns.values()), *(row[name].text for name in FIGURES))
    base = f"{names[reference]}, the first finished run," if reference else "the first run"
    note = f"{SPEED}: the total time of {base} divided by that of this one, with all epochs and surgery."
    if marked:
        note += f" {BEST}: the best of the finished runs."
    if unequal:
        note += f" {UNEQUAL} This run has another number of epochs than that run."
    return table, [*DISPENSABLE, *reversed(columns)], note


def names_of(records: Sequence[Record]) -> list[str]:
    """Short names that distinguish the runs, and how far an unfinished one is."""
    short = labels([settings_of(record)["name"] for record in records], [record.folder for record in records])
    found = []
    for name, record in zip(short, records, strict=True):
        epochs = record.run["settings"].get("epochs")
        state = "" if "summary" in record.run else f" (not finished: {len(record.rows)} of {epochs or '?'} epochs)"
        found.append(name + state + " (incomplete)" * bool("summary" in record.run and record.missing_epochs))
    return found


def mark_best(records: Sequence[Record], rows: Sequence[dict[str, Cell]]) -> bool:
    """Mark the best value of each column among finished runs, where they can be compared; whether any is marked."""
    finished = [place for place, record in enumerate(records) if "summary" in record.run]
    metrics = {(records[place].metric, records[place].higher_is_better) for place in finished}
    directions = {"parameters": False, "MACs": False, "seconds per epoch": False}
    if len({len(records[place].rows) for place in finished}) == 1:
        directions |= {"total seconds": False, SPEED: True}
    if len(metrics) == 1:
        directions |= dict.fromkeys(("last", "best"), metrics.pop()[1])
    marked = False
    for column, higher in directions.items():
        values = [value for place in finished if (value := rows[place][column].value) is not None]
        if len(set(values)) < 2:
            continue
        marked, best = True, (max if higher else min)(values)
        for place, row in enumerate(rows):
            won = place in finished and row[column].value == best
            row[column] = Cell(f"{row[column].text} {BEST if won else ' '}", row[column].value)
    return marked


def settings_of(record: Record) -> Mapping[str, Any]:
    """The settings of a training run; other records are refused."""
    settings = record.run["settings"]
    if "name" not in settings:
        raise InputError(f"the record in {record.folder} is not that of a training run: its settings have no name")
    return settings


def figures_of(record: Record, reference: Record) -> dict[str, Cell]:
    """The columns of a run besides its settings; those of an unfinished run are as of its last epoch."""
    if "summary" not in record.run:
        return figures_so_far(record)
    if not record.rows:
        raise InputError(f"the run in {record.folder} is finished, but its {EPOCHS} is missing or empty")
    with reader.asking(record.folder):
        summary, metric, trained = record.summary, record.metric, frozen(record.summary)
        size, speed = summary.get("nonzero_parameters", summary["parameters"]), EMPTY
        if "summary" in reference.run:
            ratio = reference.total_seconds / record.total_seconds
            speed = Cell(f"{ratio:.2f}x" + UNEQUAL * (len(record.rows) != len(reference.rows)), ratio)
        return {
            "parameters": Cell(f"{size:,}" + (f" ({trained})" if trained else ""), size),
            "MACs": number(summary["macs"], "{:,}".format),
            "seconds per epoch": number(summary["seconds_per_epoch"], "{:.1f}".format),
            "total seconds": number(record.total_seconds, "{:.0f}".format),
            SPEED: speed,
            "metric": Cell(metric),
            "last": number(summary[metric], "{:.2f}".format),
            "best": number(summary[f"best_{metric}"], "{:.2f}".format),
            "others": Cell(", ".join(f"{name} {value:.2f}" for name, value in other_figures(summary, metric).items())),
        }


def figures_so_far(record: Record) -> dict[str, Cell]:
    """The columns of a run that is being trained or was stopped."""
    if not record.rows:
        return dict.fromkeys(FIGURES, EMPTY)
    with reader.asking(record.folder):
        last, metric, rows = record.rows[-1], record.metric, record.phase_rows()
        best = (max if record.higher_is_better else min)(row[metric] for row in rows)
        return dict.fromkeys(FIGURES, EMPTY) | {
            "parameters": number(last.get("nonzero_parameters", last["parameters"]), "{:,}".format),
            "MACs": number(last.get("macs"), "{:,}".format),
            "seconds per epoch": number(last["seconds"], "{:.1f}".format),
            "total seconds": number(60 * record.minutes[-1], "{:.0f}".format),
            "metric": Cell(metric),
            "last": number(last[metric], "{:.2f}".format),
            "best": number(best, "{:.2f}".format),
        }


def records_of(given: Sequence[Path], limit: int) -> list[tuple[str, list[Record]]]:
    """The runs to compare, as tables with titles. Runs that are named are in one table, in this order.

    In a folder of runs, those on the same data with the same metric are in one table, the oldest first; of all runs in the
    folder only the newest `limit`. Plain files, which a pattern such as results/runs/* matches too, are ignored.
    """
    paths = [path for path in given if not path.is_file()]
    if not paths:
        raise InputError(f"{given[0]} is a file; give the directory of a run, which contains {RUN}")
    named, groups = [], {}
    for path in paths:
        found = finding.trainings(path, complain) if path.is_dir() and not (path / RUN).is_file() else []
        if not found:
            named.append(Record.read(path))  # refuses a folder without runs
        for record in found[-limit:]:
            groups.setdefault(task_of(record), []).append(record)
        if len(found) > limit:
            complain(f"{path} has {len(found)} runs; the newest {limit} are shown (--limit N shows more)")
    return [("", named)] * bool(named) + list(groups.items())


def task_of(record: Record) -> str:
    """The data set of a run and the metric on it."""
    with reader.asking(record.folder):
        data = str(settings_of(record)["dataset"]["_target_"]).rpartition(".")[2]
        return f"{data}, {record.metric}" if "summary" in record.run or record.rows or "task" in record.run else data


def show(groups: Sequence[tuple[str, Sequence[Record]]], console: Console) -> None:
    """Print a table for each group of runs, and the directories of the runs."""
    for title, records in groups:
        table, dispensable, note = compare(records, title or None)
        tables.show(table, console, dispensable=dispensable)
        say(note, console)
        for record in records:
            say(f"files: {record.folder}", console)
