"""The runs of a table: which they are, whether they are done, and how one is done and its record kept."""

import datetime
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench import main as command_line
from pufferfish_bench import run_directory
from pufferfish_bench.records import EPOCHS, RUN, read_json, write_json
from pufferfish_bench.table import Cell, PaperTable

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DESCRIBE = "from pufferfish_bench.main import describe; describe()"


@dataclass(frozen=True)
class Job:
    """One run of a cell, where it is written and where its record is kept."""

    cell: Cell
    seed: int
    record: Path
    directory: Path | None  # None: nothing is trained
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        return "/".join(self.record.parts[-3:])

    @property
    def done(self) -> bool:
        """Whether there is a record of a finished run with these very settings."""
        if not (self.record / RUN).is_file():
            return False
        try:
            kept = read_json(self.record / RUN)
        except ValueError:
            return False
        return "finished" in kept and kept["settings"] == self.settings


def jobs_of(wanted: PaperTable, seeds: int, records: Path) -> list[Job]:
    """All runs of a table, seed by seed, so that a stop leaves whole rounds; what is counted comes first and once."""
    folder = records / wanted.profile / wanted.name
    counted = [cell for cell in wanted.cells if cell.kind == "describe"]
    jobs = [
        Job(cell, 1, folder / cell.name / "seed1", None, {"overrides": list(cell.overrides), "net": cell.net}) for cell in counted
    ]
    rounds = range(1, seeds + 1)
    trained = [cell for cell in wanted.cells if cell.kind != "describe"]
    # the words of a run say nothing of workers: torchrun does, and the run's identity has them in it
    identities = {cell.name: command_line.identify([*cell.overrides, f"workers={cell.workers}"], rounds) for cell in trained}
    for number, seed in enumerate(rounds):
        jobs += [Job(cell, seed, folder / cell.name / f"seed{seed}", *identities[cell.name][number]) for cell in trained]
    return jobs


def command(job: Job) -> list[str]:
    """The words that do a job's training."""
    cell = job.cell
    words = [*cell.overrides, f"seed={job.seed}", f"run_dir={job.directory}"]
    if cell.kind == "lab":
        lab = ["-m", "pufferfish_bench.netlab", "--hosts", str(cell.workers), "--cap", str(cell.cap), "--"]
        return [sys.executable, *lab, *words]
    if cell.workers > 1:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        return [torchrun, "--standalone", "--nproc-per-node", str(cell.workers), "-m", "pufferfish_bench", *words]
    return [sys.executable, "-m", "pufferfish_bench", *words]


class Stop(Exception):
    """Somebody asked us to stop, and the run has done so."""


def attend(words: Sequence[str]) -> int:
    """Run a command to its end. It alone hears of a wish to stop, once, and is given the time for its checkpoint."""
    child = subprocess.Popen(words, start_new_session=True)
    received: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    before = {number: signal.signal(number, pass_on) for number in STOPS}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise Stop
    return code


def train(job: Job) -> bool:
    """Train what a job wants, unless another table has had it done, and keep the record."""
    if not run_directory.finished(job.directory, job.settings) and attend(command(job)):
        return False
    job.record.mkdir(parents=True, exist_ok=True)
    for file in (EPOCHS, RUN):  # run.json last: it is what says that a record is there
        shutil.copy(job.directory / file, job.record / (file + ".part"))
        (job.record / (file + ".part")).replace(job.record / file)
    return True


def count(job: Job) -> bool:
    """Count a net as pufferfish-describe does, and keep its totals."""
    from pufferfish_bench.machine import code_version  # imports torch

    words = [sys.executable, "-c", DESCRIBE, *job.cell.overrides, "json=true"]
    described = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if described.returncode:
        return False
    totals = json.loads(described.stdout)["totals"][job.cell.net]
    job.record.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    figures = {name: totals[name] for name in ("parameters", "macs", "macs_as_in_paper")}
    write_json(job.record / RUN, {"settings": job.settings, **code_version(), "counted": figures, "finished": now})
    return True


def do(job: Job) -> bool:
    return train(job) if job.directory else count(job)
