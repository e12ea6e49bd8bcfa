"""Writing the record of a run: run.json describes it, epochs.jsonl holds one flat row per epoch. Needs no torch."""

import contextlib
import datetime
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RUN, EPOCHS = "run.json", "epochs.jsonl"
# the sections of a step, in this order; a record has only those that took time
SECTIONS = ("data", "forward", "backward", "encode", "wait", "communicate", "decode", "step", "method", "other")
VOCABULARY = "vocabulary.txt"  # of a translation model, one word per line
Row = dict[str, Any]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def replace_file(path: Path, text: str) -> None:
    """Write a file completely or not at all; it is on disk when this returns."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a large file to; it takes its place when the block ends, and is removed if the block fails."""
    beside = path.with_name(path.name + ".part")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    replace_file(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def append_row(path: Path, row: Row) -> None:
    """Append a line; it is on disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """All complete rows: a kill may have truncated the last one."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def rewrite_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace all rows."""
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows))


def keep(run: Path, folder: Path) -> None:
    """Copy the record of a run, without its weights, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (EPOCHS, RUN):  # run.json last: a folder with this file has a complete record
        replace_file(folder / file, (run / file).read_text())


def frozen(figures: Mapping[str, Any]) -> str:
    """The number of trained parameters, as text, if some are frozen, else empty; in older records all are trained."""
    trained = figures.get("trainable_parameters", figures["parameters"])
    return f"{trained:,} trained" if trained != figures["parameters"] else ""


def with_other_weights(ranks: Sequence[int]) -> str:
    """A message about ranks that ended with other weights than rank 0."""
    names = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return (
        f"at the end, {names} had other weights than rank 0, whose results these are: machines or GPUs of different kinds "
        "round differently"
    )


def without_rows(missing: Sequence[int]) -> str:
    """The end of a message about a record that lacks the rows of some epochs."""
    shown = ", ".join(str(epoch + 1) for epoch in missing[:5]) + ", ..." * (len(missing) > 5)
    epochs = f"epoch{'s' * (len(missing) > 1)} {shown}"
    return f"incomplete: {EPOCHS} has no row of {epochs}; its best result and total times do not include them"
