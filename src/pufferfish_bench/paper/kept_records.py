"""Records that tables have in common: a run whose record one table has kept need not be trained for another.

The directories of runs serve the same purpose while they exist; records are committed, so they serve on other machines too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.records import machine_load, reader
from pufferfish_bench.records.files import RUN


def elsewhere(jobs: Sequence[Job], records: Path) -> dict[Path, Path]:
    """For each job whose run is in another record below `records`: the folder of its own record, and that of the other."""
    if not jobs:
        return {}
    folders: dict[str, list[Path]] = {}
    for folder, settings in recorded(records):
        folders.setdefault(key(settings), []).append(folder)
    found = {job.record: [folder for folder in folders.get(key(job.settings), ()) if serves(folder, job)] for job in jobs}
    return {own: others[0] for own, others in found.items() if others}


def recorded(records: Path) -> Iterable[tuple[Path, Mapping[str, Any]]]:
    """The folders of all records that can be read, with the settings of their runs."""
    for path in sorted(records.glob(f"*/*/*/seed*/{RUN}")):
        try:
            yield path.parent, reader.read_run(path.parent)["settings"]
        except InputError:  # the report refuses it; here it only serves nothing
            continue


def serves(folder: Path, job: Job) -> bool:
    """Whether the record is complete and of the same links, and, if the job measures time, of a run that had no company."""
    try:
        complete = job.finished_in(folder)
    except InputError:
        return False
    return complete and not (job.cell.measures_time and machine_load.had_company(reader.read_run(folder)))


def key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)
