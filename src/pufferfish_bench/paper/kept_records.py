"""Runs that need no training, because a record of them is kept already: of another table, or of another cell.

The directories of runs serve the same purpose while they exist; records are committed, so they can be used on other machines too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import outcome
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import RUN


def elsewhere(jobs: Sequence[Job], records: Path) -> dict[Path, Path]:
    """For each job whose run is in another record below `records`: the folder of its own record, and that of the other.

    Jobs that measure time are left out: the other run may have been on another machine, or beside other processes.
    """
    usable = [job for job in jobs if not job.cell.measures_time]
    if not usable:
        return {}
    folders: dict[str, list[Path]] = {}
    for folder, settings in recorded(records):
        folders.setdefault(key(settings), []).append(folder)
    found = {job.record: [folder for folder in folders.get(key(job.settings), ()) if holds(folder, job)] for job in usable}
    return {own: others[0] for own, others in found.items() if others}


def recorded(records: Path) -> Iterable[tuple[Path, Mapping[str, Any]]]:
    """The folders of all records that can be read, with the settings of their runs."""
    for path in sorted(records.glob(f"*/*/*/seed*/{RUN}")):
        try:
            yield path.parent, reader.read_run(path.parent)["settings"]
        except InputError:  # the report refuses it
            continue


def holds(folder: Path, job: Job) -> bool:
    """Whether the folder has the whole record of this job's run."""
    try:
        if not job.finished_in(folder):
            return False
        outcome.check_whole(folder, *reader.read(folder))
    except InputError:
        return False
    return True


def key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
