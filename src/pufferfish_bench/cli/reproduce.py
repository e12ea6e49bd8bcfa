"""Run the missing runs of tables and figures of the paper, keep their records, and write the report.

pufferfish tables table4 [table8 ...] --profile cpu --seeds 3

A finished run is not repeated. Failed runs are listed at the end. After a stop, the same command continues. Tables with a run in
common share it, because the directory of a run follows from its settings. --cells '*fp32' runs only the cells that match.
Several runs are trained at a time on several GPUs, with --jobs, or on a Slurm cluster: docs/clusters.md.
"""

import dataclasses
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pufferfish_bench.base.console import complain, console, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import did_you_mean
from pufferfish_bench.cli import make_command
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.paper import kept_records, launching, placing, probe, tables, threads
from pufferfish_bench.paper.cells import Cell, TrainRun
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.launching import InThisProcess, Launcher, OnThisMachine
from pufferfish_bench.paper.placement import Machine
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.paper.tables import PaperTable
from pufferfish_bench.paper.work import Work, grouped, is_left, longest_first
from pufferfish_bench.records.files import keep
from pufferfish_bench.report.overview import Overview, plan
from pufferfish_bench.report.reproduction import write_report

RESULTS = Path("results")
LAUNCHERS = ("local", "slurm", "debug")
WHAT = (
    "Runs what is missing of tables and figures of the paper, keeps the records, and writes the report. Finished runs are kept."
)
EXAMPLES = {
    "pufferfish tables table8 --profile smoke --seeds 1": "a table in seconds for each run",
    "pufferfish tables table4 --profile cpu --cells '*fp32'": "some cells of a table",
    "pufferfish tables table4 table8 --jobs 2": "two runs at a time",
}


@dataclass(frozen=True)
class Options:
    """How runs are started."""

    launcher: str | None = None  # None: local with several jobs or a GPU, else in this process
    jobs: int | None = None
    workers: int | None = None
    max_workers: int | None = None
    gpus: int | None = None  # of a dry run
    gpus_per_node: int = 8
    slurm: str = ""
    wait: bool = True
    dry: bool = False
    confirm: bool = False
    estimate: bool = True


def only(wanted: Sequence[PaperTable], patterns: Sequence[str]) -> list[PaperTable]:
    """The tables with only the cells that match a pattern, and without those that match one after `!`; both may name the table.

    A pattern that matches no cell of any table is refused.
    """

    def matches(table: PaperTable, cell: Cell, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in (cell.name, f"{table.name}/{cell.name}") for pattern in patterns)

    for pattern in patterns:
        if not any(matches(one, cell, [pattern.removeprefix("!")]) for one in wanted for cell in one.cells):
            names = [cell.name for one in wanted for cell in one.cells]
            there = "; ".join(f"{one.name} has {', '.join(cell.name for cell in one.cells)}" for one in wanted)
            raise InputError(f"CELLS={pattern} matches no cell{did_you_mean(pattern, names)}: {there}")
    out = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    kept = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]
    return [
        dataclasses.replace(
            one, cells=tuple(cell for cell in one.cells if matches(one, cell, kept) and not matches(one, cell, out))
        )
        for one in wanted
    ]


def with_workers(
    wanted: Sequence[PaperTable], asked: str, change: Callable[[TrainRun], TrainRun], exactly: int | None = None
) -> list[PaperTable]:
    """The tables with other numbers of workers. Names what changes, which is no longer the paper's setting, and what cannot."""
    found, changed, kept = [], [], []
    for one in wanted:
        cells = [change(cell) if isinstance(cell, TrainRun) else cell for cell in one.cells]
        found.append(dataclasses.replace(one, cells=tuple(cells)))
        for old, new in zip(one.cells, cells, strict=True):
            if isinstance(old, TrainRun) and isinstance(new, TrainRun):
                changed += [f"{one.name}/{new.name} ({old.workers} to {new.workers})"] if new.workers != old.workers else []
                kept += [f"{one.name}/{new.name} ({new.workers})"] if exactly not in (None, new.workers) else []
    say(f"{asked} changes the workers, at the same global batch, of {', '.join(changed) or 'no cell'}")
    if kept:
        say(f"{asked} does not change {', '.join(kept)}: no global batch in the recipe that it divides")
    return found


def selected(names: Sequence[str], profile: str, cells: Sequence[str], options: Options) -> list[PaperTable]:
    """The tables with the cells and the numbers of workers that were asked for."""
    wanted = [tables.read(name, profile) for name in names]
    if cells:
        wanted = only(wanted, cells)
    if (workers := options.workers) is not None:
        wanted = with_workers(wanted, f"WORKERS={workers}", lambda cell: cell.with_workers(workers), workers)
    if (limit := options.max_workers) is not None:
        wanted = with_workers(wanted, f"MAX_WORKERS={limit}", lambda cell: placing.with_at_most(cell, limit))
    return wanted


def reproduce(
    names: Sequence[str],
    *,
    profile: str,
    seeds: int | None = None,
    cells: Sequence[str] = (),
    options: Options = Options(),
) -> int:
    """Run the missing jobs of these tables and write the report; the exit code. `seeds` defaults to the paper's."""
    wanted = selected(names, profile, cells, options)
    wanted_jobs = [job for one in wanted for job in one.jobs(seeds or one.seeds, RESULTS / "records")]
    missing = [job for job in wanted_jobs if not job.done]
    say(f"{', '.join(names)}, profile {profile}: {len(missing)} of {len(wanted_jobs)} runs are missing")
    elsewhere = kept_records.elsewhere([job for job in missing if is_left(job)], RESULTS / "records")
    if elsewhere:
        say(f"not trained again, because other records have them: {len(elsewhere)}")
    missing = [job for job in missing if job.record not in elsewhere]
    works = grouped([job for job in missing if is_left(job)])
    machine = placing.machine_for(works, gpus=options.gpus, jobs=options.jobs, launcher=options.launcher)
    works = longest_first(works, machine)
    if options.dry:
        show_plan(works, len(missing), machine, options)
        if missing or elsewhere:
            say(f"to train this: {command(names, profile, seeds, cells, options, placing.remedies(works, machine))}")
        return 0
    if profile == "paper" and options.launcher != "slurm" and works and not (options.confirm or machine.has_gpus):
        raise InputError(
            "PROFILE=paper needs a GPU and none was found; use PROFILE=cpu, or CONFIRM=1 to run it on the CPU anyway"
        )
    for own, other in elsewhere.items():
        keep(other, own)
    for line in threads.changes(works, [job for job in wanted_jobs if job not in missing], machine):
        complain(line)
    failed: list[str] = []
    try:
        train(works, [job for job in missing if not is_left(job)], machine, options, failed)
        if works and options.launcher == "slurm" and not options.wait:
            say(f"{len(works)} runs are submitted; the same command collects their records")
        elif len(failed) < len(wanted_jobs):
            with error_messages():  # prints an error of the report before the list of failed runs
                write_report(names, profile=profile, results=RESULTS, console=console)
    finally:  # also if the report refuses the record of another table, or if a signal stops us
        if failed:
            complain(f"failed: {', '.join(failed)}; run the same command to try again")
    return 1 if failed else 0


def command(
    names: Sequence[str],
    profile: str,
    seeds: int | None,
    cells: Sequence[str],
    options: Options,
    remedies: tuple[int | None, Sequence[str]],
) -> str:
    """The command that trains what a dry run has planned; `remedies` make all runs fit, or leave them out."""
    limit, out = remedies
    values = {
        "PROFILE": profile, "SEEDS": seeds, "JOBS": options.jobs, "WORKERS": options.workers,
        "MAX_WORKERS": limit or options.max_workers, "LAUNCHER": options.launcher, "SLURM": options.slurm,
        "GPUS_PER_NODE": options.gpus_per_node if options.launcher == "slurm" else None,
    }  # fmt: skip
    switches = {"CONFIRM=1": options.confirm, "PROBE=0": not options.estimate, "WAIT=0": not options.wait}
    return make_command.complete(names, values, [*cells, *out], [name for name, on in switches.items() if on])


def show_plan(works: Sequence[Work], missing: int, machine: Machine, options: Options) -> None:
    """Print where each run would be trained, and what to do about those that do not fit."""
    if options.launcher == "slurm":
        from pufferfish_bench.paper import cluster

        lines = cluster.plan(works, options.gpus_per_node)
    else:
        lines = plan(works, machine, placing.hours(works))
    for line in lines:
        say(line)
    if others := missing - len(works):
        say(f"the other {others} of these {missing} runs are shared with others or train nothing")
    for line in placing.advice(works, machine):
        say(line)


def train(works: Sequence[Work], at_once: Sequence[Job], machine: Machine, options: Options, failed: list[str]) -> None:
    """Run all jobs, and add the names of those that fail to `failed`. `at_once`: jobs that train nothing."""
    for number, job in enumerate(at_once, start=1):
        say(f"run {number} of {len(at_once) + len(works)}: {job.name}")
        if not launching.attempt(job):
            failed.append(job.name)
    if not works:
        return
    slurm = options.launcher == "slurm"
    fitting = [work for work in works if machine.fits(work.need(machine))]
    for line in placing.advice(works, machine):
        complain(line)
    failed += [job.name for work in works if work not in fitting for job in work.jobs]
    seconds = {directory: 3600 * hours for directory, hours in placing.hours(works).items()}
    if options.estimate and not slurm:
        seconds |= probe.estimate([work.job for work in fitting if work.directory not in seconds], say)
    failed += [job.name for work in run_works(fitting, machine, seconds, len(at_once), options) for job in work.jobs]


def run_works(works: Sequence[Work], machine: Machine, seconds: Mapping[Path, float], done: int, options: Options) -> list[Work]:
    """Train the runs with the chosen launcher; those that failed."""
    chosen = options.launcher or placing.default_launcher(machine)
    watcher = Overview(works, machine, seconds, console=console, live=chosen != "debug", done=done)
    if chosen == "slurm":
        from pufferfish_bench.paper import cluster

        settings = cluster.parse(options.slurm)
        with watcher:
            return cluster.run_all(works, settings, options.gpus_per_node, watcher, wait=options.wait)
    launcher: Launcher = OnThisMachine() if chosen == "local" else InThisProcess()
    with launcher, watcher:
        return launching.run_all(works, machine, launcher, watcher)


def parser() -> Parser:
    parser = Parser("tables", WHAT, examples=EXAMPLES)
    add = parser.add_argument
    add("tables", nargs="+", metavar="TABLE", help=f"one or more of {', '.join(tables.names())}")
    add("--profile", default="cpu", help=f"one of {', '.join(tables.PROFILES)} (default: %(default)s)")
    add("--seeds", type=int, metavar="N", help="run seeds 1 to N (default: as many as the paper)")
    add("--cells", action="append", metavar="PATTERN", help="only cells that match, such as '*fp32'; repeatable")
    add("--confirm", action="store_true", help="run the paper's settings without a GPU")
    add("--no-probe", action="store_true", help="do not estimate how long it will take")
    add("--jobs", type=int, metavar="N", help="runs at the same time (default: one per GPU; 1 without GPUs)")
    add("--launcher", choices=LAUNCHERS, help="local: on this machine; slurm: on a cluster; debug: in this process")
    add("--slurm", default="", metavar="WORDS", help="for slurm: 'partition=gpu account=me timeout_min=720'")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="for slurm (default: %(default)s)")
    add("--no-wait", action="store_true", help="for slurm: end when all is submitted; the same command collects the records")
    add("--workers", type=int, metavar="N", help="train with N workers, at the global batch of the recipe")
    add("--max-workers", type=int, metavar="N", help="the same for runs of more than N workers, with at most N")
    add("--dry-run", action="store_true", help="print what would be trained where, and start nothing")
    add("--gpus", type=int, metavar="N", help="for a dry run: pretend that there are N GPUs")
    return parser


def main(words: Sequence[str]) -> int:
    given = parser().parse_args(words)
    if given.seeds is not None and given.seeds < 1:
        raise InputError(f"SEEDS={given.seeds} must be at least 1")
    if given.gpus is not None and not given.dry_run:
        raise InputError(f"GPUS={given.gpus} is only for a dry run (DRY=1); CUDA_VISIBLE_DEVICES and JOBS limit what is used")
    for name, count, instead in (
        ("JOBS", given.jobs, "SLURM='array_parallelism=N' limits the runs of a cell at a time"),
        ("GPUS", given.gpus, "GPUS_PER_NODE is the number of a node"),
    ):
        if count is not None and given.launcher == "slurm":
            raise InputError(f"{name}={count} is not for LAUNCHER=slurm, where the cluster decides when runs start; {instead}")
    least_of = {"WORKERS": (given.workers, 1), "MAX_WORKERS": (given.max_workers, 1), "GPUS_PER_NODE": (given.gpus_per_node, 0)}
    for name, (count, least) in least_of.items():
        if count is not None and count < least:
            raise InputError(f"{name}={count} must be at least {least}")
    options = Options(
        launcher=given.launcher, jobs=given.jobs, workers=given.workers, max_workers=given.max_workers, gpus=given.gpus,
        gpus_per_node=given.gpus_per_node, slurm=given.slurm, wait=not given.no_wait, dry=given.dry_run,
        confirm=given.confirm, estimate=not given.no_probe,
    )  # fmt: skip
    return reproduce(given.tables, profile=given.profile, seeds=given.seeds, cells=given.cells or (), options=options)


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
