"""The commits, machines and dates of a set of records."""

from collections.abc import Mapping, Sequence
from typing import Any

from pufferfish_bench.base.printable import printable

Run = Mapping[str, Any]  # what run.json holds


def of(runs: Sequence[Run]) -> list[str]:
    """Commits, machines and dates of these runs, as one phrase each."""
    if not runs:
        return []
    sittings = [sitting for run in runs for sitting in sittings_of(run)]
    used = {machine(sitting) + workers(sitting) for sitting in sittings if "hardware" in sitting}
    days = sorted(run["finished"][:10] for run in runs if "finished" in run)
    phrases = [
        f"commit {', '.join(sorted({commit(sitting) for sitting in sittings}))}",
        *([f"on {'; '.join(sorted(used))}"] if used else []),
        *([f"finished {days[0]}" + (f" to {days[-1]}" if days[0] != days[-1] else "")] if days else []),
    ]
    return [printable(phrase) for phrase in phrases]


def sentence(phrases: Sequence[str]) -> str:
    return f"From the records: {'; '.join(phrases) or 'no records yet'}."


def sittings_of(run: Run) -> list[Run]:
    """The conditions at the start of a run and after each resume, which may be on another commit or machine."""
    return [run, *({**run, **resumed} for resumed in run.get("resumed", ()))]


def commit(run: Run) -> str:
    return (run.get("commit") or "unknown")[:12] + " with changes" * bool(run.get("dirty"))


def machine(run: Run) -> str:
    """The device and number of threads of a run or of a part of it."""
    hardware = run.get("hardware", {})
    threads = hardware.get("threads")
    counted = f", {threads} thread{'s' * (threads != 1)}" if threads else ""
    return f"{hardware.get('device', 'unknown')}{counted}"


def workers(run: Run) -> str:
    count = run.get("world_size", 1)
    return f", {count} workers" * (count > 1)
