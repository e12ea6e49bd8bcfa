"""Finds the runs in a folder."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records.files import RUN
from pufferfish_bench.records.record import Record

RUNS = Path("results/runs")  # where pufferfish-run puts them
DEEPEST = 3  # levels below the folder


def directories(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """The directories of runs at or below a folder; what is inside a run is not searched."""
    if (folder / RUN).is_file():
        yield folder
    elif depth:
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        for name in below:
            yield from directories(folder / name, depth - 1)


def trainings(folder: Path, warn: Callable[[str], None]) -> list[Record]:
    """The records of all training runs in a folder, the oldest first; one that cannot be read is left out with a warning."""
    found = []
    for directory in directories(folder):
        try:
            record = Record.read(directory)
        except InputError as error:
            warn(f"warning: left out: {error}")
            continue
        if "name" in record.run["settings"]:  # else it was counted, not trained
            found.append(record)
    return sorted(found, key=lambda record: record.run.get("started", ""))
