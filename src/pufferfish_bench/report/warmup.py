"""How the layers of a run changed while it warmed up or searched, and when each trigger would have ended that phase."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.base.console import complain
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config.known_triggers import known_triggers
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import Row, without_rows
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import charts, output
from pufferfish_bench.training import triggers

SIGNS = {"stable_rank_change": "largest change of a stable rank", "mask_distance": "largest distance between masks"}


def sheets(record: Record, rows: Sequence[Row]) -> list[output.Sheet]:
    """The signs and the metric of each epoch, and the epoch in which each trigger would have fired."""
    settings, metric = record.run["settings"], record.metric
    columns = ["epoch", *(sign for sign in ("stable_rank", *SIGNS) if any(sign in row for row in rows)), metric]
    table = [
        [output.number(row["epoch"] + 1, str), *(output.number(row.get(key), "{:.4g}".format) for key in columns[1:])]
        for row in rows
    ]
    history = [-row[metric] if record.higher_is_better else row[metric] for row in rows]
    fired = []
    for name, trigger in known_triggers(settings["method"]).items():
        epoch = triggers.first_epoch(trigger, rows, history)
        fired.append([name, "not within this record" if epoch is None else f"after epoch {epoch}"])
    fired.append(["this run", next((done["note"] for done in record.run["operations"] if "note" in done), "not ended yet")])
    return [
        output.Sheet(f"{settings['name']}: phase {rows[0]['phase']}", columns, table),
        output.Sheet("When each trigger would have ended this phase", ["trigger", "ends"], fired),
    ]


def draw(rows: Sequence[Row]) -> Figure:
    with charts.style():
        seen = {sign: words for sign, words in SIGNS.items() if any(sign in row for row in rows)}
        figure = Figure(figsize=(6 * len(seen), 4), layout="constrained")
        for number, (axes, (sign, words)) in enumerate(
            zip(figure.subplots(1, len(seen), squeeze=False)[0], seen.items(), strict=True)
        ):
            points = [(row["epoch"] + 1, row[sign]) for row in rows if sign in row]
            axes.plot(*zip(*points, strict=True), **charts.look(number))
            axes.set(title=words, xlabel="epoch", xlim=(0, len(rows) + 1))
            axes.set_ylim(bottom=0)
    return figure


def show(directory: Path, console: Console, *, out: Path | None = None) -> None:
    """Print the tables of a run; write them and a chart as `out`.md, `out`.png and `out`.svg."""
    record = Record.read(directory)
    if missing := record.missing_epochs:
        complain(f"warning: the record in {directory} is {without_rows(missing)}")
    rows = [row for row in record.rows if any(sign in row for sign in SIGNS) or row["phase"] == record.rows[0]["phase"]]
    if not any(sign in row for row in rows for sign in SIGNS):
        raise InputError(f"the record in {directory} has no warm-up and no search")
    with reader.asking(directory):
        shown = sheets(record, rows)
    for sheet in shown:
        sheet.show(console)
    if out:
        output.write(out, {".md": "\n".join(sheet.markdown() for sheet in shown)}, console)
        charts.save(draw(rows), out, console)
