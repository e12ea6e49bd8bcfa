"""The advisor's predictions against runs in the network lab: which runs, and the table of errors. Starts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench.advisor.advice import methods_in
from pufferfish_bench.advisor.networks import measured as network_of
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.config import yaml_files
from pufferfish_bench.distributed import forecast, units
from pufferfish_bench.records.record import Record, step_seconds
from pufferfish_bench.report.output import Sheet, number

HOSTS = 2
TOLERANCE = 0.15
# (method, reducer) of a run -> the advisor's label
LABELS = {
    ("vanilla", "allreduce"): "vanilla", ("pufferfish", "allreduce"): "Pufferfish",
    ("vanilla", "powersgd"): "PowerSGD rank 2", ("pufferfish", "powersgd"): "Pufferfish + PowerSGD rank 2",
}  # fmt: skip
RUN_NAME = "${hydra:runtime.choices.method}-${hydra:runtime.choices.reducer}"  # of the directory of a run of the sweep
SEGMENT = 35  # words of a step of the LSTM


@dataclass(frozen=True)
class Case:
    """A model of the check."""

    name: str
    batch_size: int
    overrides: tuple[str, ...]

    def advisor_words(self, out: Path, rounds: int) -> list[str]:
        """The command line of pufferfish-advise."""
        own = ["network=10gbit", f"workers={HOSTS}", "batch=task", "layers=all", "ratios=[0.25]"]
        return [*self.overrides, f"batch_size={self.batch_size}", *own, f"rounds={rounds}", f"out={out}"]

    def run_words(self, common: Sequence[str], timed_steps: int, root: Path) -> list[str]:
        """The command line of pufferfish-run: a sweep over the four methods."""
        amount = HOSTS * self.batch_size * (timed_steps + 1)
        text = any(word == "dataset=synthetic_text" for word in self.overrides)
        size = f"dataset.train_words={amount * SEGMENT + HOSTS * self.batch_size}" if text else f"dataset.train_images={amount}"
        methods, reducers = (",".join(dict.fromkeys(pair[place] for pair in LABELS)) for place in (0, 1))
        swept = [f"method={methods}", f"reducer={reducers}"]
        words = [*self.overrides, *common, f"batch_size={self.batch_size}", size]
        return ["--multirun", *words, f"run_dir={root}/{RUN_NAME}", *swept]


def settings(toy: bool) -> dict[str, Any]:
    """The content of check.yaml beside this file; with `toy`, small sizes for a test."""
    read = yaml_files.read(Path(__file__).with_name("check.yaml"))
    small = read.pop("toy")
    return read | small if toy else read


def cases(found: Mapping[str, Any], only: Sequence[str] = ()) -> list[Case]:
    for name in only:
        if name not in found["models"]:
            raise not_known(f"--models {name}", name, list(found["models"]))
    return [
        Case(name, each["batch_size"], tuple(each["overrides"]))
        for name, each in found["models"].items()
        if not only or name in only
    ]


def compare(case: str, cap: str, advice: Mapping[str, Any], network: Mapping[str, Any], runs: Path) -> list[dict[str, Any]]:
    """Predicted and measured step of every run in a folder. The prediction knows nothing of the runs."""
    methods = {method.label: method for method in methods_in(advice)}
    links = network_of(network, "measured in the lab").links
    rows = []
    for directory in sorted(path.parent for path in runs.glob("*/run.json")):
        record = Record.read(directory)
        label = label_of(directory)
        measured = step_seconds(record.phase_rows(None))
        if measured is None:
            raise InputError(f"the run in {directory} has no timed steps; run the check again")
        predicted = forecast.step_seconds(methods[label], HOSTS, links)
        rows.append({
            "model": case, "cap": cap, "method": label, "predicted": predicted, "measured": measured,
            "error": predicted / measured - 1,
        })  # fmt: skip
    order = list(LABELS.values())
    return sorted(rows, key=lambda row: order.index(row["method"]))


def label_of(directory: Path) -> str:
    """The label of a run, from the name that `run_words` gives its directory."""
    method, _, reducer = directory.name.partition("-")
    return LABELS[method, reducer]


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    within = sum(abs(row["error"]) <= TOLERANCE for row in rows)
    return f"{within} of {len(rows)} predictions are within {TOLERANCE:.0%} of the measured step"


def sheet(rows: Sequence[Mapping[str, Any]], conditions: str) -> Sheet:
    """The table of results/advisor/README.md."""
    cells = [
        [
            row["model"], row["cap"], row["method"], number(row["predicted"], units.show_seconds),
            number(row["measured"], units.show_seconds), number(100 * row["error"], "{:+.1f} %".format),
        ]
        for row in rows
    ]  # fmt: skip
    return Sheet(
        "The advisor against the network lab",
        ["model", "link", "method", "predicted step", "measured step", "error"], cells, f"{summary(rows)}. {conditions}",
    )  # fmt: skip
