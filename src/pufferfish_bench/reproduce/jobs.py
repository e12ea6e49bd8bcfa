"""The runs of a table: which they are, whether they are done, and how one is done and its record kept."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench import checked, processors, run_directory
from pufferfish_bench import main as command_line
from pufferfish_bench.errors import InputError
from pufferfish_bench.netlab import bits_per_second
from pufferfish_bench.records import RUN, keep, now, without_rows, write_json
from pufferfish_bench.settings import with_later
from pufferfish_bench.table import Cell, PaperTable

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DESCRIBE = "from pufferfish_bench.main import describe; describe()"
LINKS = ("hosts", "cap_bits_per_second")  # what run.json has of a lab under "network"; elsewhere there is none of it
GRACE = 60  # seconds: netlab gives its hosts 40 to end, torchrun its workers 30


@dataclass(frozen=True)
class Job:
    """One run of a cell, where it is written and where its record is kept."""

    cell: Cell
    seed: int
    record: Path
    directory: Path | None  # None: nothing is trained
    settings: dict[str, Any]
    links: dict[str, int]  # of the lab; empty: no lab

    @property
    def name(self) -> str:
        return "/".join(self.record.parts[-3:])

    @property
    def done(self) -> bool:
        """Whether there is a record of a finished run with these very settings, over these very links."""
        try:
            kept, rows = checked.read(self.record)
        except InputError:
            return False
        return (
            "finished" in kept
            and with_later(kept["settings"]) == with_later(self.settings)
            and links_of(kept) == self.links
            and not checked.missing_epochs(kept, rows)
        )


def links_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The links of the lab in which a run was done; empty if it was not done in a lab."""
    network = record.get("network") or {}
    return {key: network[key] for key in LINKS if key in network}


def in_lab(cell: Cell, directory: Path) -> tuple[Path, dict[str, int]]:
    """Where a cell's run is written, and over which links it goes: settings say nothing of those, so the directory does."""
    if cell.kind != "lab":
        return directory, {}
    links = dict(zip(LINKS, (cell.workers, bits_per_second(str(cell.cap))), strict=True))
    return directory.with_name(f"{directory.name}-{cell.cap}"), links


def jobs_of(wanted: PaperTable, seeds: int, records: Path) -> list[Job]:
    """All runs of a table, seed by seed, so that a stop leaves whole rounds; what is counted comes first and once."""
    folder = records / wanted.profile / wanted.name
    counted = [cell for cell in wanted.cells if cell.counted]
    jobs = [Job(cell, 1, folder / cell.name / "seed1", None, what_is_counted(cell), {}) for cell in counted]
    rounds = range(1, seeds + 1)
    trained = [cell for cell in wanted.cells if not cell.counted]
    # the words of a run say nothing of workers: torchrun does, and the run's identity has them in it
    identities = {cell.name: command_line.identify([*cell.overrides, f"workers={cell.workers}"], rounds) for cell in trained}
    for number, seed in enumerate(rounds):
        for cell in trained:
            identity, settings = identities[cell.name][number]
            directory, links = in_lab(cell, identity)
            jobs.append(Job(cell, seed, folder / cell.name / f"seed{seed}", directory, settings, links))
    return jobs


def what_is_counted(cell: Cell) -> dict[str, Any]:
    """By which the record of a counted cell is known."""
    if cell.kind == "layer":
        return {"layer": cell.layer, "net": cell.net, "sizes": dict(cell.sizes)}
    return {"overrides": list(cell.overrides), "net": cell.net}


def command(job: Job) -> list[str]:
    """The words that do a job's training."""
    cell = job.cell
    words = [*cell.overrides, f"seed={job.seed}", f"run_dir={job.directory}"]
    if cell.kind == "lab":
        lab = ["-m", "pufferfish_bench.netlab", "--hosts", str(cell.workers), "--cap", str(cell.cap), "--"]
        return [sys.executable, *lab, *words]
    if cell.workers > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cell.workers)]
        return [sys.executable, *torchrun, "-m", "pufferfish_bench", *words]
    return [sys.executable, "-m", "pufferfish_bench", *words]


def surroundings(job: Job) -> dict[str, str]:
    """Of its training: torchrun would give each worker one thread, with a warning. The lab sees to that itself."""
    shared = job.cell.workers > 1 and job.cell.kind != "lab"
    return processors.environment(job.cell.workers) if shared else dict(os.environ)


class Stop(Exception):
    """Somebody asked us to stop, and the run has done so."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = number


def attend(words: Sequence[str], seconds: float | None = None, **further: Any) -> int:
    """Run a command to its end. A wish to stop is passed on to it, and it is given the time for its checkpoint.

    After `seconds` it is asked to end, so that it can end what it has started, and TimeoutExpired is raised.
    """
    child: subprocess.Popen | None = None
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        if child:
            child.send_signal(asked(number))

    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, pass_on) for number in heard}
    late = None
    try:
        child = subprocess.Popen(words, start_new_session=True, **further)
        if received:  # while it was being started
            child.send_signal(asked(received[0]))
        code = child.wait(seconds)
    except subprocess.TimeoutExpired as error:
        late = error
        if not received:
            end(child)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise Stop(received[0])
    if late:
        raise late
    return code


def asked(number: int) -> int:
    """The signal by which a run is asked to stop."""
    return signal.SIGTERM if number == signal.SIGHUP else number


def end(child: subprocess.Popen) -> None:
    """End a process, and with force only if it does not listen: what it has started would stay."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def finished(job: Job) -> bool:
    """Whether the run of a job is done, for whichever table; a directory that holds another run is refused."""
    if not run_directory.finished(job.directory, job.settings):
        return False
    record, rows = checked.read(job.directory)
    if missing := checked.missing_epochs(record, rows):
        raise InputError(f"the record in {job.directory} is {without_rows(missing)}; move it away to start anew")
    found = links_of(record)
    if found != job.links:
        raise InputError(
            f"{job.directory} holds a run over other links ({'; '.join(run_directory.differences(found, job.links))}); "
            "move it away to start anew"
        )
    return True


def train(job: Job) -> bool:
    """Train what a job wants, unless another table has had it done, and keep the record."""
    if not finished(job) and attend(command(job), env=surroundings(job)):
        return False
    keep(job.directory, job.record)
    return True


def count(job: Job) -> bool:
    """Count what a job wants counted, and keep the totals."""
    from pufferfish_bench.machine import code_version  # imports torch
    from pufferfish_bench.reproduce import layers

    cell = job.cell
    totals = layers.count(cell.layer, cell.net, cell.sizes) if cell.kind == "layer" else described(cell)
    if totals is None:
        return False
    job.record.mkdir(parents=True, exist_ok=True)
    write_json(job.record / RUN, {"settings": job.settings, **code_version(), "counted": totals, "finished": now()})
    return True


def described(cell: Cell) -> dict[str, int] | None:
    """The totals of a net as pufferfish-describe counts it; None if it does not."""
    words = [sys.executable, "-c", DESCRIBE, *cell.overrides, "json=true"]
    answer = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        return None
    totals = json.loads(answer.stdout)["totals"][cell.net]
    return {name: totals[name] for name in ("parameters", "macs", "macs_as_in_paper")}


def do(job: Job) -> bool:
    return train(job) if job.directory else count(job)
