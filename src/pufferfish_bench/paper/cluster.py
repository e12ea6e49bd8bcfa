"""Train runs as jobs of a Slurm cluster, submitted with submitit: one job for each run, the seeds of a cell as an array.

A job that reaches its time limit, or is preempted with a signal, writes a checkpoint and is queued again. The number of the job
is kept in the directory of its run, so that the same command finds it again instead of submitting it twice.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import complain, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.launching import LOG, Watcher, attempt, kept, print_to, raise_stop
from pufferfish_bench.paper.nodes import PATIENCE, Nodes, split
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.paper.work import Work
from pufferfish_bench.records import run_directory
from pufferfish_bench.records.files import replace_file
from pufferfish_bench.training.signals import Interrupts

NUMBER = "slurm-job"  # in the directory of a run: the job that trains it
FOLDER = ".submitit"  # beside the directories of the runs: what submitit writes
DEFAULTS = {"timeout_min": 24 * 60, "slurm_signal_delay_s": 120}  # minutes until it is queued again; seconds for a checkpoint
SHARED = ("timeout_min", "mem_gb", "cpus_per_task")  # settings that submitit knows for all kinds of clusters
OURS = ("name", "nodes", "gpus_per_node", "tasks_per_node")
REQUEUES = 10_000  # the longest runs take weeks
POLL_SECONDS = 10.0
LINGER = 60.0  # seconds
PREEMPTED = re.compile(r"JobState=PREEMPTED|PreemptTime=\d")  # in what scontrol shows
NOT_STARTED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")  # states of a job in the queue


@dataclass(frozen=True)
class RunOnCluster:
    """Train the run of a job in one Slurm job; True if that succeeded. submitit calls it on every node of the Slurm job."""

    job: Job

    def __call__(self) -> bool:
        signal.signal(signal.SIGTERM, raise_stop)
        nodes = nodes_of_this_job()
        job = replace(self.job, cell=self.job.cell.on(nodes)) if nodes else self.job
        try:
            if nodes and nodes.rank:
                print_to(job.directory / f"output-node{nodes.rank}.log")
                return job.cell.assist(job) == 0
            print_to(job.directory / LOG)
            return attempt(job)
        except Stop:
            say("stopped with a checkpoint; the command that submitted this job continues the run")
            if not (nodes and nodes.rank):
                requeue_if_preempted()
            time.sleep(LINGER)  # what follows decides: the signal of a preemption queues it again, scancel ends it
            return False

    def checkpoint(self) -> Any:
        """Called by submitit when the job has to end: stop with a checkpoint; the job that continues it."""
        import submitit

        with contextlib.suppress(Stop):  # raised if no training is under way
            signal.raise_signal(signal.SIGTERM)  # the supervisor of the training passes it on
        end = time.monotonic() + PATIENCE
        while run_directory.in_use(self.job.directory) and time.monotonic() < end:
            time.sleep(0.1)
        return submitit.helpers.DelayedSubmission(self)


def nodes_of_this_job() -> Nodes | None:
    """The machines of the Slurm job that this process belongs to; None if there is one."""
    import submitit

    here = submitit.JobEnvironment()
    return Nodes(here.num_nodes, here.node, here.hostnames[0], int(here.raw_job_id)) if here.num_nodes > 1 else None


def requeue_if_preempted() -> None:
    """Queue this job again if Slurm has preempted it: of a job that ends by itself within the grace time, Slurm does not."""
    number = os.environ["SLURM_JOB_ID"]
    with contextlib.suppress(FileNotFoundError):
        shown = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True).stdout
        if PREEMPTED.search(shown):
            subprocess.run(["scontrol", "requeue", number], check=False)


def parse(words: str) -> dict[str, Any]:
    """The settings in SLURM="partition=gpu account=me timeout_min=720", under the names that submitit has for them."""
    found: dict[str, Any] = dict(DEFAULTS)
    for word in shlex.split(words):
        key, equals, value = word.partition("=")
        if not (key and equals and value) or key in OURS:
            own = f"{key} is set by the run itself" if key in OURS else "KEY=VALUE is expected, such as partition=gpu"
            raise InputError(f"SLURM: {word}: {own}")
        number = int(value) if value.isdecimal() else {"true": True}.get(value, value)
        found[key if key in SHARED else f"slurm_{key}"] = number
    return found | {"slurm_srun_args": srun_arguments(found)}


def srun_arguments(settings: Mapping[str, Any]) -> list[str]:
    """The arguments of srun: Slurm 22.05 to 23.11 does not pass on the cores that sbatch was given."""
    cores = [f"--cpus-per-task={settings['cpus_per_task']}"] if "cpus_per_task" in settings else []
    return [*shlex.split(str(settings.get("slurm_srun_args", ""))), *cores]


def resources(work: Work, gpus_per_node: int) -> dict[str, Any]:
    """The machines that a run needs. One that measures time has them to itself. Without GPUs all its workers are on one."""
    nodes = split(max(1, work.cell.gpus), gpus_per_node) if gpus_per_node else 1
    gpus = work.cell.gpus // nodes if gpus_per_node else 0
    found = {"nodes": nodes, "tasks_per_node": 1, "gpus_per_node": gpus or None}
    return found | ({"slurm_exclusive": True} if work.cell.measures_time else {})


def arrays(works: Sequence[Work]) -> list[list[Work]]:
    """The runs that become one array: the seeds of a cell."""
    found: dict[Path, list[Work]] = {}
    for work in works:
        found.setdefault(work.job.record.parent, []).append(work)
    return list(found.values())


def submit(works: Sequence[Work], settings: Mapping[str, Any], gpus_per_node: int) -> None:
    """Submit a job for each run, and note its number."""
    import submitit

    for same in arrays(works):
        first = same[0]
        folder = first.directory.parent.absolute() / FOLDER
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=REQUEUES)
            executor.update_parameters(
                name="-".join(first.name.split("/")[:2]), stderr_to_stdout=True, **resources(first, gpus_per_node), **settings
            )
            with executor.batch():
                jobs = [executor.submit(RunOnCluster(work.job)) for work in same]
        except (NameError, AssertionError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"LAUNCHER=slurm: {' '.join(str(error).split())}") from None
        for work, job in zip(same, jobs, strict=True):
            work.directory.mkdir(parents=True, exist_ok=True)
            replace_file(work.directory / NUMBER, job.job_id)


def plan(works: Sequence[Work], gpus_per_node: int) -> list[str]:
    """What would be submitted: a line for each array."""
    lines = []
    for same in arrays(works):
        needs, hours = resources(same[0], gpus_per_node), same[0].cell.hours
        nodes, gpus = needs["nodes"], needs["gpus_per_node"] or 0
        parts = [f"{len(same)} job{'s' * (len(same) > 1)} of {nodes} node{'s' * (nodes > 1)}"]
        parts.append(f"{gpus} GPU{'s' * (gpus > 1)} on each" if gpus else "no GPU")
        parts += ["nodes to itself"] if "slurm_exclusive" in needs else []
        parts.append("hours unknown" if hours is None else f"{hours:,.2f} hours each")
        lines.append(f"  {'/'.join(same[0].name.split('/')[:2])}: {', '.join(parts)}")
    return [*lines, f"total: {len(works)} jobs; the cluster decides when they start"]


def queued() -> dict[str, str]:
    """The states of all jobs of this user in the queue, by their number."""
    words = ["squeue", "--me", "--array", "--noheader", "--format=%i %T"]
    try:
        lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines if line.strip())
    except FileNotFoundError:
        raise InputError("LAUNCHER=slurm needs the command squeue, which was not found: start this on a Slurm cluster") from None
    except subprocess.CalledProcessError as error:
        raise InputError(f"squeue failed: {error.stderr.strip()}; run the same command again") from None


def number_of(work: Work) -> str | None:
    """The number of the job that was submitted last for a run."""
    path = work.directory / NUMBER
    return path.read_text() if path.exists() else None


class Queue:
    """The states of jobs, by their number, look by look."""

    def __init__(self, there: dict[str, str]) -> None:
        self.there, self.missing = there, set[str]()

    def look(self) -> None:
        """Look again. If squeue fails, which happens now and then, all stays as it was."""
        with contextlib.suppress(InputError):
            there, before = queued(), self.there
            gone = {number for number in before if number not in there}
            # a job that has just been submitted may not be listed yet: it has ended when it is missing twice
            self.there = there | {number: before[number] for number in gone - self.missing}
            self.missing = gone - self.missing


def trained(work: Work) -> bool:
    """Whether a run whose job has ended is finished; its records are then kept. Reports a directory that cannot be used."""
    try:
        return work.job.trained and kept(work.jobs)
    except InputError as error:
        complain(f"{work.name}: {error}")
        return False


def run_all(
    works: Sequence[Work], settings: Mapping[str, Any], gpus_per_node: int, watcher: Watcher, *, wait: bool
) -> list[Work]:
    """Submit the runs that are not in the queue, wait for all of them, and keep their records; those that failed.

    With `wait=False`, return as soon as they are submitted. A signal ends the waiting, not the jobs, and raises Stop.
    """
    there = queued()
    submit([work for work in works if number_of(work) not in there], settings, gpus_per_node)
    for work in works:
        say(f"{'in the queue' if number_of(work) in there else 'submitted'}: {work.name}, Slurm job {number_of(work)}")
    waiting, failed = list(works) if wait else [], []
    started: set[Work] = set()
    queue = Queue(there | {number_of(work) or "": "PENDING" for work in works if number_of(work) not in there})
    with Interrupts(children=[]) as interrupts:
        while waiting and not interrupts.requested():
            queue.look()
            for work in list(waiting):
                state = queue.there.get(number_of(work) or "")
                if state not in NOT_STARTED and work not in started:  # also one that has ended since the last look
                    started.add(work)
                    watcher.started(work, (f"Slurm job {number_of(work)}",))
                if state is None:
                    waiting.remove(work)
                    succeeded = trained(work)
                    failed += [] if succeeded else [work]
                    watcher.ended(work, succeeded, work.directory / LOG)
            end = time.monotonic() + POLL_SECONDS
            while waiting and not interrupts.requested() and time.monotonic() < end:
                watcher.tick()
                time.sleep(min(0.5, POLL_SECONDS))
    if interrupts.received is not None:
        numbers = " ".join(number_of(work) or "" for work in waiting)
        say(f"the Slurm jobs go on: {numbers}; the same command collects their records, scancel with these numbers ends them")
        raise Stop(interrupts.received)
    return failed
