"""The record of a run on disk: run.json says what it is, epochs.jsonl holds one flat row an epoch. Needs no torch."""

import datetime
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.visible import visible

RUN, EPOCHS = "run.json", "epochs.jsonl"
# of a step, in their order; those that a run does not have are not in its record
SECTIONS = ("data", "forward", "backward", "encode", "wait", "communicate", "decode", "step", "method", "other")
BAR = 40  # letters of the longest bar
VOCABULARY = "vocabulary.txt"  # of a model that translates, one word a line
Row = dict[str, Any]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def replace_file(path: Path, text: str) -> None:
    """Put `text` under `path`, whole or not at all, and on disk when this returns."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    replace_file(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def append_row(path: Path, row: Row) -> None:
    """Add a line that is on disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """The rows that are whole: a kill may have cut the last one."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def rewrite_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace all rows."""
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows))


def keep(run: Path, folder: Path) -> None:
    """Put the record of a run, without its weights, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (EPOCHS, RUN):  # run.json last: it is what says that a record is there
        replace_file(folder / file, (run / file).read_text())


def summarise(rows: list[Row], *, metric: str, higher_is_better: bool) -> Row:
    """The figures a table wants of a run: the last row, the best of the metric, and the time of all epochs."""
    last = rows[-1]
    # the last phase has the net that is left, and is where the method pays
    phase = [row for row in rows if row["phase"] == last["phase"]]
    best = max(phase, key=lambda row: row[metric] if higher_is_better else -row[metric])
    # an epoch from the timed steps, as the first ones of a phase warm up
    timed = sum(row["seconds"] - row.get("seconds_first_steps", 0.0) for row in phase)
    steps = sum(row["timed_steps"] for row in phase)
    return {
        "metric": metric,
        metric: last[metric],
        **others(last, metric),
        f"best_{metric}": best[metric],
        "best_epoch": best["epoch"],
        "loss": last["loss"],
        "parameters": last["parameters"],
        **{key: last[key] for key in ("trainable_parameters", "nonzero_parameters") if key in last},
        "macs": last["macs"],
        "epochs": last["epoch"] + 1,
        "seconds": sum(row["seconds"] for row in rows),
        "seconds_per_epoch": timed / steps * last["steps"] if steps else last["seconds"],
        "bytes_per_step": sum(size for _, size in last["messages"]),
        "step": step_of(phase),
    }


def step_of(rows: list[Row]) -> dict[str, float]:
    """Seconds of each section of a step, on average over the timed steps of some epochs."""
    steps = sum(row["timed_steps"] for row in rows)
    seconds = {section: sum(row.get(f"seconds_{section}", 0.0) for row in rows) for section in SECTIONS}
    return {section: total / steps for section, total in seconds.items() if total} if steps else {}


def others(figures: Row, metric: str) -> Row:
    """What a model was judged by besides the metric."""
    return {name: value for name, value in figures.items() if name.startswith(("test_", "val_", "train_")) and name != metric}


def frozen(figures: Mapping[str, Any]) -> str:
    """How many of the parameters are trained, where that is not all of them; older records do not say."""
    trained = figures.get("trainable_parameters", figures["parameters"])
    return f"{trained:,} trained" if trained != figures["parameters"] else ""


def without_rows(missing: Sequence[int]) -> str:
    """What is wrong with a record that lacks the rows of some epochs."""
    shown = ", ".join(str(epoch + 1) for epoch in missing[:5]) + ", ..." * (len(missing) > 5)
    epochs = f"epoch{'s' * (len(missing) > 1)} {shown}"
    return f"incomplete: {EPOCHS} has no row of {epochs}, so best and total times are of the others"


def closing(summary: dict[str, Any], directory: Path, incomplete: Sequence[int] = ()) -> str:
    """The summary of a finished run as a person reads it."""
    metric = summary["metric"]
    nonzero = f"{summary['nonzero_parameters']:,} not zero" if "nonzero_parameters" in summary else ""
    remarks = ", ".join(filter(None, (nonzero, frozen(summary))))
    left = f" ({remarks})" if remarks else ""
    further = "".join(f"{visible(name)} {value:.2f}, " for name, value in others(summary, metric).items())
    return (
        f"finished: {visible(metric)} {summary[metric]:.2f} (best {summary[f'best_{metric}']:.2f} in epoch "
        f"{summary['best_epoch'] + 1}), {further}{summary['parameters']:,} parameters{left}, {summary['macs']:,} MACs, "
        f"{summary['seconds_per_epoch']:.1f} s an epoch, {summary['seconds']:.0f} s of training\n"
        f"{bars(summary)}{without_rows(incomplete) + chr(10) if incomplete else ''}files:    {visible(str(directory))}"
    )


def bars(summary: dict[str, Any]) -> str:
    """A step of the last phase, section by section."""
    step = summary["step"]
    whole = sum(step.values())
    if not whole:
        return ""
    longest = max(step.values())
    sent = f", {summary['bytes_per_step']:,} bytes sent" if summary["bytes_per_step"] else ""
    lines = [f"a step:   {1000 * whole:.1f} ms{sent}\n"]
    for section, seconds in step.items():
        bar = "\N{FULL BLOCK}" * round(BAR * seconds / longest)
        lines.append(f"  {visible(section):<12}{1000 * seconds:>9.1f} ms {100 * seconds / whole:>5.1f} %  {bar}".rstrip() + "\n")
    return "".join(lines)
