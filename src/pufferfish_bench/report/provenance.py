"""What records were made with: commits, machines and days."""

from collections.abc import Mapping, Sequence
from typing import Any

from pufferfish_bench.visible import visible

Run = Mapping[str, Any]  # what run.json holds


def of(runs: Sequence[Run]) -> list[str]:
    """Commits, machines and days of these runs, a phrase for each."""
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
    return [visible(phrase) for phrase in phrases]


def sentence(phrases: Sequence[str]) -> str:
    return f"From the records: {'; '.join(phrases) or 'no records yet'}."


def sittings_of(run: Run) -> list[Run]:
    """A run as it began, and as it was after each resume: on other code, perhaps, or on another machine."""
    return [run, *({**run, **resumed} for resumed in run.get("resumed", ()))]


def commit(run: Run) -> str:
    return (run.get("commit") or "unknown")[:12] + " with changes" * bool(run.get("dirty"))


def machine(run: Run) -> str:
    """What a run, or a part of it, was made on."""
    hardware = run.get("hardware", {})
    threads = hardware.get("threads")
    counted = f", {threads} thread{'s' * (threads != 1)}" if threads else ""
    return f"{hardware.get('device', 'unknown')}{counted}"


def workers(run: Run) -> str:
    count = run.get("world_size", 1)
    return f", {count} workers" * (count > 1)
