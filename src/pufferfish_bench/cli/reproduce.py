"""Run the missing runs of tables and figures of the paper, keep their records, and write the report.

pufferfish tables table4 [table8 ...] --profile cpu --seeds 3

A finished run is not repeated. Failed runs are listed at the end. After a stop, the same command continues. Tables with a run in
common share it, because the directory of a run follows from its settings. --cells '*fp32' runs only the cells that match.
"""

import dataclasses
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pufferfish_bench.base.console import complain, console, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import did_you_mean
from pufferfish_bench.cli.messages import error_messages, explain
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.paper import probe, tables
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.paper.tables import PaperTable
from pufferfish_bench.report.reproduction import write_report

RESULTS = Path("results")
WHAT = (
    "Runs what is missing of tables and figures of the paper, keeps the records, and writes the report. Finished runs are kept."
)
EXAMPLES = {
    "pufferfish tables table8 --profile smoke --seeds 1": "a table in seconds for each run",
    "pufferfish tables table4 --profile cpu --cells '*fp32'": "some cells of a table",
}


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def only(wanted: Sequence[PaperTable], patterns: Sequence[str]) -> list[PaperTable]:
    """The tables with only those cells that match a pattern; a pattern that matches no cell of any table is refused."""
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for one in wanted for cell in one.cells):
            names = [cell.name for one in wanted for cell in one.cells]
            there = "; ".join(f"{one.name} has {', '.join(cell.name for cell in one.cells)}" for one in wanted)
            raise InputError(f"CELLS={pattern} matches no cell{did_you_mean(pattern, names)}: {there}")
    return [
        dataclasses.replace(
            one, cells=tuple(cell for cell in one.cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns))
        )
        for one in wanted
    ]


def run_all(missing: Sequence[Job], failed: list[str]) -> None:
    """Run one job after the other, and add the names of those that fail to `failed`."""
    for number, job in enumerate(missing, start=1):
        say(f"run {number} of {len(missing)}: {job.name}")
        try:
            succeeded = job.run()
        except (InputError, OSError) as error:
            complain(f"error: {explain(error) or error}")
            succeeded = False
        if not succeeded:
            failed.append(job.name)


def reproduce(
    names: Sequence[str],
    *,
    profile: str,
    seeds: int | None = None,
    cells: Sequence[str] = (),
    confirm: bool = False,
    estimate: bool = True,
) -> int:
    """Run the missing jobs of these tables and write the report; the exit code. `seeds` defaults to the paper's."""
    wanted = [tables.read(name, profile) for name in names]
    if cells:
        wanted = only(wanted, cells)
    wanted_jobs = [job for one in wanted for job in one.jobs(seeds or one.seeds, RESULTS / "records")]
    missing = [job for job in wanted_jobs if not job.done]
    say(f"{', '.join(names)}, profile {profile}: {len(missing)} of {len(wanted_jobs)} runs are missing")
    if profile == "paper" and not confirm and any(job.directory for job in missing) and not has_gpu():
        raise InputError(
            "PROFILE=paper needs a GPU and none was found; use PROFILE=cpu, or CONFIRM=1 to run it on the CPU anyway"
        )
    if estimate:
        probe.estimate(missing, say)
    failed: list[str] = []
    try:
        run_all(missing, failed)
        if len(failed) < len(wanted_jobs):
            with error_messages():  # prints an error of the report before the list of failed runs
                write_report(names, profile=profile, results=RESULTS, console=console)
    finally:  # also if the report refuses the record of another table, or if a signal stops us
        if failed:
            complain(f"failed: {', '.join(failed)}; run the same command to try again")
    return 1 if failed else 0


def main(words: Sequence[str]) -> int:
    parser = Parser("tables", WHAT, examples=EXAMPLES)
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=f"one or more of {', '.join(tables.names())}")
    parser.add_argument("--profile", default="cpu", help=f"one of {', '.join(tables.PROFILES)} (default: %(default)s)")
    parser.add_argument("--seeds", type=int, metavar="N", help="run seeds 1 to N (default: as many as the paper)")
    parser.add_argument("--cells", action="append", metavar="PATTERN", help="only cells that match, such as '*fp32'; repeatable")
    parser.add_argument("--confirm", action="store_true", help="run the paper's settings without a GPU")
    parser.add_argument("--no-probe", action="store_true", help="do not estimate how long it will take")
    given = parser.parse_args(words)
    if given.seeds is not None and given.seeds < 1:
        raise InputError(f"SEEDS={given.seeds} must be at least 1")
    return reproduce(
        given.tables,
        profile=given.profile,
        seeds=given.seeds,
        cells=given.cells or (),
        confirm=given.confirm,
        estimate=not given.no_probe,
    )


def run() -> None:
    """The command pufferfish tables."""
    with error_messages():
        try:
            sys.exit(main(sys.argv[1:]))
        except (Stop, KeyboardInterrupt) as stop:
            complain("stopped; run the same command to continue")
            sys.exit(128 + (stop.signal if isinstance(stop, Stop) else signal.SIGINT))


if __name__ == "__main__":
    run()
