"""Train runs side by side on this machine. submitit starts and watches the processes; placement.py says which come next."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pufferfish_bench.base import cores
from pufferfish_bench.base.console import complain, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.explanations import explain
from pufferfish_bench.paper import lifeline, placement
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.lifeline import Lifeline
from pufferfish_bench.paper.placement import Machine, Running
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.paper.work import Work
from pufferfish_bench.training.signals import Interrupts

LOG = "output.log"  # in the directory of a run: what it printed, if it was started beside others
POLL_SECONDS = 0.5
FOREVER = 10 * 365 * 24 * 60  # minutes: submitit's local executor would end a run after its time limit


def attempt(job: Job) -> bool:
    """Do the work of a job; whether that succeeded. An error that the user can fix is printed."""
    try:
        return job.run()
    except (InputError, OSError) as error:
        complain(f"error: {explain(error) or error}")
        return False


def raise_stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stop(number)


def print_to(log: Path) -> None:
    """From now on, all that this process and its children print is appended to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    # of a run that was stopped too, submitit would say in the end that the job completed successfully
    logging.getLogger("submitit").addFilter(lambda record: "success" not in record.getMessage())


@dataclass(frozen=True)
class RunCell:
    """Train the run of a job in a process that submitit has started on this machine; True if that succeeded."""

    job: Job
    slots: tuple[str, ...]
    machine: Machine
    lifeline: Path

    def __call__(self) -> bool:
        signal.signal(signal.SIGTERM, raise_stop)  # outside of `attend` and of waiting, which handle it themselves
        print_to(self.job.directory / LOG)
        os.environ.update(self.share())
        lifeline.follow(self.lifeline)
        try:
            return attempt(self.job)
        except Stop:
            say("stopped; the command that started this run continues it")
            return False

    def share(self) -> dict[str, str]:
        """The part of the machine that the run may use, as environment variables."""
        machine, here = self.machine, cores.cores()
        part = 1.0 if self.job.cell.measures_time else max(len(self.slots) / len(machine.slots), 1 / machine.jobs)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.slots)} if machine.has_gpus else {}
        return gpus | {cores.SHARE: str(max(1, int(here * part)))}


class Watcher:
    """Receives what happens, to show it. The base class shows nothing."""

    def started(self, work: Work, slots: tuple[str, ...]) -> None: ...

    def ended(self, work: Work, succeeded: bool, log: Path | None) -> None: ...

    def stopping(self, count: int) -> None: ...

    def tick(self) -> None:
        """Called again and again while runs are trained."""


class Launcher(ABC):
    """Starts a run, and says when it has ended. Its runs exist inside the `with` block."""

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    @abstractmethod
    def start(self, work: Work, slots: tuple[str, ...], machine: Machine) -> Any:
        """Start a run on these slots of the machine; returns what stands for it in the calls below."""

    @abstractmethod
    def ended(self, started: Any) -> bool: ...

    @abstractmethod
    def succeeded(self, work: Work, started: Any) -> bool:
        """Of a run that has ended; asked once."""

    def log(self, work: Work) -> Path | None:
        """The file with what the run has printed; None if it was printed here."""
        return None

    def stop(self) -> None:
        """Make all runs stop with a checkpoint."""
        return None


class InThisProcess(Launcher):
    """One run after the other, with submitit's debug executor: what it prints is seen here, and signals stop it."""

    def start(self, work: Work, slots: tuple[str, ...], machine: Machine) -> Any:
        import submitit

        return submitit.AutoExecutor(folder=tempfile.gettempdir(), cluster="debug").submit(attempt, work.job)  # writes no files

    def ended(self, started: Any) -> bool:
        if isinstance(error := started.exception(), Exception):  # runs it; done() would start a debugger after an error
            raise error
        return True

    def succeeded(self, work: Work, started: Any) -> bool:
        return started.submission().result()


class OnThisMachine(Launcher):
    """Processes of submitit's local executor. They end when this process does."""

    def __enter__(self) -> "OnThisMachine":
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pufferfish-", ignore_cleanup_errors=True)))
            self.lifeline = stack.enter_context(Lifeline(self.folder / "lifeline"))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def start(self, work: Work, slots: tuple[str, ...], machine: Machine) -> Any:
        import submitit

        executor = submitit.AutoExecutor(folder=self.folder, cluster="local")
        executor.update_parameters(timeout_min=FOREVER, stderr_to_stdout=True)
        # Ctrl-C and the end of a terminal reach every process of the terminal. submitit would then give the run one second.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})  # its processes inherit this
        try:
            return executor.submit(RunCell(work.job, slots, machine, self.lifeline.path))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ended(self, started: Any) -> bool:
        return started.done()

    def succeeded(self, work: Work, started: Any) -> bool:
        paths = started.paths
        if paths.result_pickle.exists() and started.exception() is None:
            result = started.result()
            paths.result_pickle.unlink()  # the next process may have the same number
            return result
        with contextlib.suppress(OSError), self.log(work).open("a") as log:  # it failed outside of the run: submitit knows why
            log.write(paths.stdout.read_text(errors="replace"))
        return False

    def log(self, work: Work) -> Path:
        return work.directory / LOG

    def stop(self) -> None:
        self.lifeline.cut()


def run_all(works: Sequence[Work], machine: Machine, launcher: Launcher, watcher: Watcher) -> list[Work]:
    """Train the runs that fit on the machine, and keep the records of all their jobs; those that failed.

    A signal stops all runs; Stop is raised once they have ended.
    """
    waiting = [work for work in works if machine.fits(work.need(machine))]
    running: dict[Work, tuple[Any, tuple[str, ...]]] = {}
    failed: list[Work] = []
    with Interrupts(children=[]) as interrupts:
        stopping = False
        while running or (waiting and not interrupts.requested()):
            for work, (started, _) in list(running.items()):
                if launcher.ended(started):
                    del running[work]
                    succeeded = launcher.succeeded(work, started) and kept(work.jobs[1:])  # the run has kept its first
                    if not succeeded and not stopping:
                        failed.append(work)
                    if succeeded or not stopping:
                        watcher.ended(work, succeeded, launcher.log(work))
            if interrupts.requested() and not stopping:
                stopping = True
                watcher.stopping(len(running))
                launcher.stop()
            if not stopping:
                start_next(waiting, running, machine, launcher, watcher)
            watcher.tick()
            if running:
                time.sleep(POLL_SECONDS)
    if interrupts.received is not None:
        raise Stop(interrupts.received)
    return failed


def start_next(waiting: list[Work], running: dict, machine: Machine, launcher: Launcher, watcher: Watcher) -> None:
    """Start what can start now, and move it from `waiting` to `running`."""
    busy = [Running(slots, work.need(machine).alone) for work, (_, slots) in running.items()]
    chosen = placement.starts([work.need(machine) for work in waiting], busy, machine)
    for work, slots in [(waiting[place], slots) for place, slots in chosen.items()]:
        waiting.remove(work)
        watcher.started(work, slots)
        running[work] = (launcher.start(work, slots, machine), slots)


def kept(jobs: Sequence[Job]) -> bool:
    """Keep the records of jobs whose run is trained; whether that succeeded."""
    try:
        return [attempt(job) for job in jobs].count(False) == 0
    except Stop:
        return False


def last_lines(log: Path, count: int = 12) -> list[str]:
    """The end of what a run printed."""
    try:
        return log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []
