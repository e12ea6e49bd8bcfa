"""How long runs will take, from the first steps of each of them."""

import json
import subprocess
from collections.abc import Callable, Sequence

from pufferfish_bench.reproduce.jobs import Job, command

STEPS = 4
PATIENCE = 300  # seconds that a probe may take, its start and its data included


def probe(job: Job) -> float | str:
    """Seconds that a run would take at the pace of its first steps, or why that is not known."""
    try:
        words = [*command(job), f"probe_steps={STEPS}"]
        tried = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        return json.loads(tried.stdout.splitlines()[-1])["seconds"]
    except subprocess.TimeoutExpired:
        return f"two steps take more than {PATIENCE} s"
    except (ValueError, IndexError):
        complaint = tried.stderr.strip().splitlines()
        return complaint[-1] if complaint else "its first steps say nothing"


def estimate(jobs: Sequence[Job], say: Callable[[str], None]) -> float:
    """Try the first steps of each cell, say how long its missing runs will take, and all of them together."""
    total, unknown = 0.0, False
    missing = {job.directory: job for job in jobs if job.directory and job.cell.kind == "train"}.values()  # shared runs once
    cells: dict[tuple, list[Job]] = {}
    for job in missing:
        cells.setdefault((*job.cell.overrides, job.cell.workers), []).append(job)
    for (job, *_), runs in ((same, len(same)) for same in cells.values()):
        found = probe(job)
        if isinstance(found, str):
            unknown = True
            say(f"  {job.cell.name}: not known: {found}")
        else:
            total += runs * found
            say(f"  {job.cell.name}: {spoken(found)}" + f", {runs} times" * (runs > 1))
    if cells:
        say(f"in all {spoken(total)}{', and what is not known' * unknown}; the tests after each epoch come on top")
    return total


def spoken(seconds: float) -> str:
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds:.0f} seconds"
