"""The load of the machine while a run was trained: whether other processes used the machine, too. Needs no torch."""

import contextlib
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records import reader, run_directory
from pufferfish_bench.records.files import RUN, write_json

KEY = "machine_load"  # in run.json: a list, with an entry for each time that the run was started or resumed by a table
# Cores. The services of an idle machine and our own waiting process stay below this. What is allowed costs a run that uses all
# cores at most 0.1 / cores of its time, which is 5 % on two cores and less than any speed-up that the paper claims.
COMPANY = 0.1
STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Moment:
    """Counters of the machine and of this process, all in seconds except the load."""

    time: float
    load: float  # mean number of runnable processes over the last minute
    own: float  # CPU time of our child processes that have ended, with their own children
    busy: float | None  # CPU time of all processes, summed over cores; None: the system does not tell

    @classmethod
    def now(cls) -> "Moment":
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = busy_seconds(STAT.read_text(), os.sysconf("SC_CLK_TCK")) if STAT.exists() else None
        return cls(time.monotonic(), os.getloadavg()[0], used.ru_utime + used.ru_stime, busy)


def busy_seconds(stat: str, ticks: int) -> float:
    """CPU time of all processes, from the first line of /proc/stat, whose counters have `ticks` per second.

    Interrupts belong to no process, and our own network traffic causes them. Stolen time is what a hypervisor gave to others.
    """
    user, nice, system, _idle, _iowait, _irq, _softirq, stolen, *_ = map(int, stat.splitlines()[0].split()[1:])
    return (user + nice + system + stolen) / ticks


def between(before: Moment, after: Moment) -> dict[str, float]:
    """What the record holds about the time between two moments; our child processes of that time must have ended."""
    found = {"load_before": round(before.load, 2), "load_after": round(after.load, 2)}
    if before.busy is not None and after.busy is not None and after.time > before.time:
        others = (after.busy - before.busy) - (after.own - before.own)
        found["other_busy_cores"] = max(0.0, round(others / (after.time - before.time), 3))  # the counters are rounded
    return found


@contextlib.contextmanager
def recorded(directory: Path) -> Iterator[None]:
    """Add the load during this context, in which a child process trains, to the record of its run, however it ends.

    A process that refused to train, or found nothing left to train, has not written to the record: then nothing is added.
    """
    path = directory / RUN
    unchanged, before = path.exists() and path.read_bytes(), Moment.now()
    try:
        yield
    finally:
        found = between(before, Moment.now())
        if path.exists() and path.read_bytes() != unchanged:
            with contextlib.suppress(InputError), run_directory.exclusive(directory):  # damaged, or another process writes to it
                record = reader.read_run(directory)
                write_json(path, record | {KEY: [*record.get(KEY, ()), found]})


def had_company(run: Mapping[str, Any]) -> bool:
    """Whether other processes used the machine during a run. Not known, and False, for runs that no table started."""
    return any(sitting.get("other_busy_cores", 0.0) > COMPANY for sitting in run.get(KEY, ()))
