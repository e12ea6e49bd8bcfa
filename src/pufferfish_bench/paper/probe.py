"""Estimate how long runs will take, from the first steps of each of them."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pufferfish_bench.base.console import about
from pufferfish_bench.paper import machine_lock
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.supervision import attend
from pufferfish_bench.paper.work import is_left, share_left

STEPS = 4
PATIENCE = 300  # seconds that a probe may take, including its start and loading its data


def probe(job: Job) -> float | str:
    """Seconds that a run would take at the pace of its first steps, or the reason why that is not known."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as errors:
        answer = Path(folder) / "probe.json"
        words = [*job.cell.command(job), f"probe_steps={STEPS}", f"probe_file={answer}"]
        try:
            with machine_lock.held(
                exclusive=False
            ):  # an estimate may have company, but must not disturb others that measure time
                attend(words, PATIENCE, env=job.cell.environment(), stdout=subprocess.DEVNULL, stderr=errors)
        except subprocess.TimeoutExpired:
            return f"{STEPS} steps take more than {PATIENCE} s"
        except OSError as error:
            return str(error)
        if answer.exists():
            found = json.loads(answer.read_text())
            return found["error"] if "error" in found else found["seconds"]
        errors.seek(0)
        return last_line(errors.read())


def last_line(text: str) -> str:
    """What a process printed last before it failed without an answer; rulers are skipped."""
    lines = [line.strip() for line in text.splitlines() if any(letter.isalnum() for letter in line)]
    return lines[-1] if lines else "its first steps failed without a message"


def estimate(jobs: Sequence[Job], say: Callable[[str], None]) -> dict[Path, float]:
    """Run the first steps of each cell, and report how long its missing runs will take; the seconds of whole runs, if known."""
    total, unknown, seconds = 0.0, False, {}
    left = {job.directory: job for job in jobs if is_left(job)}.values()  # a run that tables share counts once
    cells: dict[tuple, list[Job]] = {}
    for job in left:
        cells.setdefault((*job.cell.words, job.cell.workers, *job.links.values()), []).append(job)
    if not cells:
        return seconds
    say(f"running the first steps of {len(cells)} cell{'s' * (len(cells) > 1)} for an estimate; PROBE=0 skips this")
    for same in cells.values():
        job, runs = same[0], len(same)
        found = probe(job)
        if isinstance(found, str):
            unknown = True
            say(f"  {job.cell.name}: unknown: {found}")
        else:
            left_of_it = sum(map(share_left, same)) / runs
            total += runs * found * left_of_it
            seconds |= {job.directory: found for job in same}
            begun = f"; {100 * (1 - left_of_it):.0f} % of this is done" * (left_of_it < 1)
            say(f"  {job.cell.name}: {about(found)}" + f", {runs} times" * (runs > 1) + begun)
    known = f"{about(total)}{', plus the unknown cells' * unknown}" if total else "unknown"
    say(f"total: {known}; one after the other, evaluation after each epoch is not included")
    return seconds
