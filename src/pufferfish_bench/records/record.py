"""The record of a run: run.json and the rows of epochs.jsonl, read once, and figures derived from them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import SECTIONS, Row

COUNTED, INSPECTED = "counted", "inspected"
UNTRAINED = (COUNTED, INSPECTED)  # entries of the record of something that was built and not trained
METRICS = ("test_accuracy", "val_ppl")  # of our tasks; older records of unfinished runs do not name their metric


@dataclass(frozen=True)
class Record:
    """What a run left in its directory."""

    folder: Path
    run: Mapping[str, Any]  # all of run.json
    rows: Sequence[Row]  # one per epoch

    @classmethod
    def read(cls, folder: Path) -> Record:
        run, rows = reader.read(folder)
        return cls(folder, run, tuple(rows))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The results of a finished run."""
        return self.run["summary"]

    @property
    def missing_epochs(self) -> list[int]:
        return reader.missing_epochs(self.run, list(self.rows))

    @property
    def metric(self) -> str:
        """The name of the task's main metric."""
        if "summary" in self.run:
            return self.summary["metric"]
        if "task" in self.run:
            return self.run["task"]["metric"]
        found = next((name for name in METRICS if self.rows and name in self.rows[0]), None)
        if found is None:
            raise InputError(f"the run in {self.folder} is not finished, and its epochs have none of {', '.join(METRICS)}")
        return found

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the metric is better."""
        named = self.run.get("task", {}) | self.run.get("summary", {})
        return named.get("higher_is_better", higher_is_better(self.metric))

    @property
    def surgery_seconds(self) -> float | None:
        """The time of all changes of the model between phases, such as the SVD; None if there were none."""
        seconds = [operation["seconds"] for operation in self.run["operations"]]
        return sum(seconds) if seconds else None

    @property
    def epoch_seconds_before_surgery(self) -> float | None:
        """Seconds of an epoch of the first phase, if the model was changed after it; an epoch is its steps at their mean time."""
        if not self.rows or self.rows[0]["phase"] == self.rows[-1]["phase"]:
            return None
        rows = self.phase_rows(self.rows[0]["phase"])
        step = step_seconds(rows)
        return rows[-1]["seconds"] if step is None else step * rows[-1]["steps"]

    @property
    def total_seconds(self) -> float:
        """The time of all epochs and of the surgery between them (the paper's times include the SVD), without evaluation."""
        return self.summary["seconds"] + (self.surgery_seconds or 0.0)

    @property
    def minutes(self) -> list[float]:
        """Minutes since the start at the end of each epoch, including surgery, without evaluation."""
        surgery = {operation["epoch"]: operation["seconds"] for operation in self.run["operations"]}
        return list(accumulate((row["seconds"] + surgery.get(row["epoch"], 0.0)) / 60 for row in self.rows))

    def phase_rows(self, phase: str | None = None) -> list[Row]:
        """The epochs of a phase; by default of the last one, which trains the final model."""
        names = list(dict.fromkeys(row["phase"] for row in self.rows))
        if not names:
            raise InputError(f"the run in {self.folder} has not finished an epoch")
        if phase is not None and phase not in names:
            raise InputError(f"the run in {self.folder} has no phase {phase!r}; its phases are {printable(', '.join(names))}")
        return [row for row in self.rows if row["phase"] == (phase or self.rows[-1]["phase"])]

    def overlaps(self, phase: str | None = None) -> bool:
        """Whether gradients were sent while others were still computed. Older records lack this; none of them used DDP."""
        return any(row.get("overlaps", False) for row in self.phase_rows(phase))

    def epoch_seconds(self, *sections: str) -> float | None:
        """Seconds of an epoch of the last phase in these sections of its steps; None if no step was timed."""
        rows = self.phase_rows()
        step = step_sections(rows)
        return rows[-1]["steps"] * sum(step[section] for section in sections) if step else None


def higher_is_better(figure: str) -> bool:
    """Whether a figure improves upwards, by its name: for older records, and for figures other than the task's metric."""
    return not figure.endswith(("_loss", "_ppl"))


def timed_steps(rows: Sequence[Row]) -> int:
    """The number of steps in the mean times: the first ones of a phase warm up and are not timed."""
    return sum(row["timed_steps"] for row in rows)


def step_seconds(rows: Sequence[Row]) -> float | None:
    """The mean time of a step over the timed steps of some epochs; None if there are none."""
    steps = timed_steps(rows)
    return sum(row["seconds"] - row.get("seconds_first_steps", 0.0) for row in rows) / steps if steps else None


def step_sections(rows: Sequence[Row], rank: str = "seconds") -> dict[str, float]:
    """The mean seconds of each section of a step; they add up to `step_seconds`. Empty if no step was timed.

    `rank` chooses the mean over ranks (seconds), the slowest or the fastest rank; a single rank is both.
    """
    steps = timed_steps(rows)
    if not steps:
        return {}
    return {
        section: sum(row.get(f"{rank}_{section}", row.get(f"seconds_{section}", 0.0)) for row in rows) / steps
        for section in SECTIONS
    }


def summarise(rows: Sequence[Row], *, metric: str, higher_is_better: bool) -> Row:
    """The results of a finished run for run.json: those of the last epoch, the best metric, and the times."""
    last = rows[-1]
    phase = [row for row in rows if row["phase"] == last["phase"]]
    best = max(phase, key=lambda row: row[metric] if higher_is_better else -row[metric])
    step = step_seconds(phase)
    return {
        "metric": metric,
        "higher_is_better": higher_is_better,
        metric: last[metric],
        **other_figures(last, metric),
        f"best_{metric}": best[metric],
        "best_epoch": best["epoch"],
        "loss": last["loss"],
        "parameters": last["parameters"],
        **{key: last[key] for key in ("trainable_parameters", "nonzero_parameters") if key in last},
        "macs": last["macs"],
        "epochs": last["epoch"] + 1,
        "seconds": sum(row["seconds"] for row in rows),
        "seconds_per_epoch": last["seconds"] if step is None else step * last["steps"],
        "bytes_per_step": sum(size for _, size in last["messages"]),
        "step": {section: seconds for section, seconds in step_sections(phase).items() if seconds},
    }


def other_figures(figures: Mapping[str, Any], metric: str) -> Row:
    """The results of an evaluation besides the metric."""
    return {name: value for name, value in figures.items() if name.startswith(("test_", "val_", "train_")) and name != metric}
