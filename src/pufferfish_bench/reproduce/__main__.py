"""Runs what a table of the paper still lacks, keeps the records, and has the report written.

python -m pufferfish_bench.reproduce table4 [table8 ...] --profile cpu --seeds 3

A cell that is done is not run again; one that fails is named at the end; the same command after a stop goes on. Two tables that
have a run in common share it, for a run's directory is its settings. --cells '*fp32' leaves all other cells as they are.
"""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from pufferfish_bench import speech, table
from pufferfish_bench.errors import InputError
from pufferfish_bench.report import reproduction
from pufferfish_bench.reproduce import jobs, probe
from pufferfish_bench.speech import explain, spoken_errors
from pufferfish_bench.table import PaperTable

RESULTS = Path("results")


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def say(console: Console, sentence: str) -> None:
    speech.say(sentence, console)


def only(tables: Sequence[PaperTable], patterns: Sequence[str]) -> list[PaperTable]:
    """The tables with those cells alone that fit a pattern; one that fits none of any table is refused."""
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for one in tables for cell in one.cells):
            there = "; ".join(f"{one.name} has {', '.join(cell.name for cell in one.cells)}" for one in tables)
            raise InputError(f"CELLS={pattern} fits no cell: {there}")
    return [
        dataclasses.replace(
            one, cells=tuple(cell for cell in one.cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns))
        )
        for one in tables
    ]


def do_all(missing: Sequence[jobs.Job], console: Console, failed: list[str]) -> None:
    """Do one job after the other, and put the names of those that fail into `failed`."""
    for number, job in enumerate(missing, start=1):
        say(console, f"run {number} of {len(missing)}: {job.name}")
        try:
            done = jobs.do(job)
        except (InputError, OSError) as error:
            say(Console(stderr=True), f"error: {explain(error) or error}")
            done = False
        if not done:
            failed.append(job.name)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pufferfish_bench.reproduce", description="Run tables and figures of the paper."
    )
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=f"of {', '.join(table.names())}")
    parser.add_argument("--profile", default="cpu", help="paper, cpu or smoke (default: %(default)s)")
    parser.add_argument("--seeds", type=int, metavar="N", help="1 to N (default: as many as the paper has)")
    parser.add_argument(
        "--cells", action="append", metavar="PATTERN", help="only those that fit, such as '*fp32'; may be given again"
    )
    parser.add_argument("--confirm", action="store_true", help="do the paper's settings without a GPU all the same")
    parser.add_argument("--no-probe", action="store_true", help="do not estimate how long it will take")
    given = parser.parse_args(words)
    console = Console()
    if given.seeds is not None and given.seeds < 1:
        raise InputError(f"SEEDS={given.seeds} must be at least 1")
    wanted = [table.read(name, given.profile) for name in given.tables]
    if given.cells:
        wanted = only(wanted, given.cells)
    wanted_jobs = [job for one in wanted for job in jobs.jobs_of(one, given.seeds or one.seeds, RESULTS / "records")]
    missing = [job for job in wanted_jobs if not job.done]
    say(console, f"{', '.join(given.tables)}, profile {given.profile}: {len(missing)} of {len(wanted_jobs)} runs are missing")
    asks = given.profile == "paper" and not given.confirm and any(job.directory for job in missing) and not has_gpu()
    if asks:  # before the probe, which would take minutes to no end
        raise InputError(
            "PROFILE=paper wants a GPU, and there is none: CONFIRM=1 does it all the same, PROFILE=cpu is the miniature"
        )
    if not given.no_probe:
        probe.estimate(missing, lambda sentence: say(console, sentence))
    failed: list[str] = []
    try:
        do_all(missing, console, failed)
        if len(failed) < len(wanted_jobs):
            reproduction.main([*given.tables, "--profile", given.profile, "--results", str(RESULTS)])
    finally:  # the report may refuse the record of another table, and somebody may stop us
        if failed:
            say(Console(stderr=True), f"failed: {', '.join(failed)}; the same command tries them again")
    return 1 if failed else 0


if __name__ == "__main__":
    with spoken_errors():
        try:
            sys.exit(main(sys.argv[1:]))
        except (jobs.Stop, KeyboardInterrupt) as stop:
            say(Console(stderr=True), "stopped; the same command goes on from here")
            sys.exit(128 + (stop.signal if isinstance(stop, jobs.Stop) else signal.SIGINT))
