"""How long runs will take, from the first steps of each of them."""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.reproduce.jobs import Job, attend, command, finished, surroundings
from pufferfish_bench.speech import about

STEPS = 4
PATIENCE = 300  # seconds that a probe may take, its start and its data included
ERROR = re.compile(r"(?:host \d+: )?(?:rank \d+: )?error: (.+)")  # as a run says what is wrong, alone or as one of many


def probe(job: Job) -> float | str:
    """Seconds that a run would take at the pace of its first steps, or why that is not known."""
    with tempfile.TemporaryFile("w+", errors="replace") as said, tempfile.TemporaryFile("w+", errors="replace") as complained:
        try:
            attend([*command(job), f"probe_steps={STEPS}"], PATIENCE, env=surroundings(job), stdout=said, stderr=complained)
            said.seek(0)
            return json.loads(said.read().splitlines()[-1])["seconds"]
        except subprocess.TimeoutExpired:
            return f"{STEPS} steps take more than {PATIENCE} s"
        except OSError as error:
            return str(error)
        except (ValueError, IndexError, KeyError, TypeError):  # nothing, or something else
            complained.seek(0)
            return reason(complained.read())


def reason(complaint: str) -> str:
    """What went wrong: the last error that a rank tells of, else the last line with a word in it."""
    lines = [line.strip() for line in complaint.splitlines() if re.search(r"\w", line)]
    errors = [found[1] for found in map(ERROR.fullmatch, lines) if found]
    return (errors or lines or ["its first steps say nothing"])[-1]


def is_left(job: Job) -> bool:
    """Whether there is something to train; what refuses its directory says so when its turn comes."""
    try:
        return job.directory is not None and not finished(job)
    except InputError:
        return True


def share_left(job: Job) -> float:
    """The part of a run's epochs that is still to be trained; all of them where nothing can be read."""
    try:
        with checked.asking(job.directory):
            record, rows = checked.read_run(job.directory), checked.read_rows(job.directory, needs=("epoch",))
            return max(0.0, 1 - len(rows) / record["plan"][-1]["epochs"][1])
    except (OSError, InputError):
        return 1.0


def estimate(jobs: Sequence[Job], say: Callable[[str], None]) -> float:
    """Try the first steps of each cell, say how long its missing runs will take, and all of them together."""
    total, unknown = 0.0, False
    left = {job.directory: job for job in jobs if is_left(job)}.values()  # shared runs once
    cells: dict[tuple, list[Job]] = {}
    for job in left:
        cells.setdefault((*job.cell.overrides, job.cell.workers, *job.links.values()), []).append(job)
    if not cells:
        return total
    say(f"trying the first steps of {len(cells)} cell{'s' * (len(cells) > 1)}; PROBE=0 skips this")
    for same in cells.values():
        job, runs = same[0], len(same)
        found = probe(job)
        if isinstance(found, str):
            unknown = True
            say(f"  {job.cell.name}: not known: {found}")
        else:
            left_of_it = sum(map(share_left, same)) / runs
            total += runs * found * left_of_it
            begun = f"; of this {100 * (1 - left_of_it):.0f} % is done" * (left_of_it < 1)
            say(f"  {job.cell.name}: {about(found)}" + f", {runs} times" * (runs > 1) + begun)
    known = f"{about(total)}{', and what is not known' * unknown}" if total else "not known"
    say(f"in all {known}; the tests after each epoch come on top")
    return total
