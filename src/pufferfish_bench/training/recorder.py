"""The record of a run: an observer that writes run.json and epochs.jsonl."""

import logging
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Observer, Run
from pufferfish_bench.records import files, reader
from pufferfish_bench.records.files import EPOCHS, RUN, Row
from pufferfish_bench.records.record import summarise

CONDITIONS = ("commit", "dirty", "versions", "hardware", "data", "world_size", "network")

log = logging.getLogger(__name__)


class Recorder(Observer):
    """Writes run.json and epochs.jsonl."""

    def __init__(self, *, directory: Path, manifest: dict[str, Any]):
        self.directory = directory
        self.manifest = {"format": reader.FORMAT, **manifest}
        self.rows: list[Row] = []

    def run_started(self, run: Run) -> None:
        self.manifest["plan"] = [{"phase": phase.name, "epochs": [phase.epochs.start, phase.epochs.stop]} for phase in run.plan]
        self.manifest["task"] = {"metric": run.task.metric, "higher_is_better": run.task.higher_is_better}
        earlier = reader.read_run(self.directory, needs=()) if (self.directory / RUN).exists() else {}
        self.manifest["started"] = earlier.get("started", files.now())
        self.manifest["resumed"] = earlier.get("resumed", [])
        if run.epoch or run.step:
            # keep the conditions of the start; what has changed since (code, machine) is recorded with the resume
            changed = {key: self.manifest.pop(key, None) for key in CONDITIONS if earlier.get(key) != self.manifest.get(key)}
            self.manifest |= {key: earlier[key] for key in changed if key in earlier}
            if "machine_load" in earlier:  # while the epochs before the checkpoint were trained
                self.manifest["machine_load"] = earlier["machine_load"]
            self.manifest["resumed"].append({"epoch": run.epoch, "step": run.step, "time": files.now(), **changed})
        # epochs after the checkpoint are trained again: drop their rows
        self.rows = [row for row in reader.read_rows(self.directory) if row["epoch"] < run.epoch]
        self.check_rows(run)
        files.rewrite_rows(self.directory / EPOCHS, self.rows)
        self.write(run)

    def check_rows(self, run: Run) -> None:
        """Warn about missing rows and list them in the record: they cannot be measured again."""
        missing = sorted({*range(run.epoch)} - {row["epoch"] for row in self.rows})
        if not missing:
            return
        if not self.rows and run.epoch == run.epochs:
            raise InputError(
                f"all {run.epoch} epochs are trained, but {self.directory / EPOCHS} has no rows: restore the file, or move the "
                "directory away to start again"
            )
        self.manifest["incomplete"] = missing
        log.warning(f"the record in {self.directory} is {files.without_rows(missing)}")

    def phase_started(self, run: Run) -> None:
        self.write(run)

    def epoch_ended(self, run: Run, row: Row) -> None:
        self.rows.append(row)
        files.append_row(self.directory / EPOCHS, row)

    def run_ended(self, run: Run) -> None:
        task = run.task
        self.manifest["finished"] = files.now()
        summary = summarise(self.rows, metric=task.metric, higher_is_better=task.higher_is_better)
        self.manifest["summary"] = summary | run.final_results.figures
        if run.unequal_ranks:
            self.manifest["unequal_ranks"] = list(run.unequal_ranks)
        for name, text in run.final_results.files.items():
            files.replace_file(self.directory / name, text)
        self.write(run)

    def write(self, run: Run) -> None:
        self.manifest["operations"] = [operation for operation in run.operations if operation]
        files.write_json(self.directory / RUN, self.manifest)
