"""How a run's layers settled while it warmed up or searched, and when each trigger would have ended that.

python -m pufferfish_bench.report.warmup RUN [--out FOLDER/NAME]
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from omegaconf import OmegaConf
from rich.console import Console

from pufferfish_bench import checked, constructors, triggers
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import without_rows
from pufferfish_bench.report import charts, output
from pufferfish_bench.report.measured import load
from pufferfish_bench.settings import config_dir
from pufferfish_bench.speech import complain, spoken_errors

METRICS = {"test_accuracy": 1, "val_ppl": -1}  # 1: more is better
SIGNS = {"stable_rank_change": "largest change of a stable rank, in ranks", "mask_distance": "largest distance of masks"}


def known_triggers(settings: dict[str, Any]) -> dict[str, triggers.Trigger]:
    """Every trigger of conf/method/trigger with its settings, those that refer to a run's with that run's."""
    constructors.refuse_references("method", settings["method"])
    found = {}
    for path in sorted((Path(config_dir()) / "method" / "trigger").glob("*.yaml")):
        config = OmegaConf.create({**settings, "trigger": OmegaConf.load(path)})
        if path.stem == "fixed_epoch" and "warmup_epochs" not in config.method:
            continue  # of a search: nobody fixed its end
        own = OmegaConf.to_container(config.trigger, resolve=True)
        name = own.pop("_target_").rpartition(".")[2]
        own.pop("_partial_")
        words = ", ".join(f"{key} {value}" for key, value in own.items())
        found[f"{path.stem} ({words})"] = partial(getattr(triggers, name), **own)
    return found


def sheets(record: dict[str, Any], rows: list[dict[str, Any]], metric: str, better: int) -> list[output.Sheet]:
    columns = ["epoch", *(sign for sign in ("stable_rank", *SIGNS) if any(sign in row for row in rows)), metric]
    table = [[str(row["epoch"] + 1), *(f"{row[key]:.4g}" if key in row else "" for key in columns[1:])] for row in rows]
    history = [-better * row[metric] for row in rows]
    fired = []
    for name, trigger in known_triggers({"method": record["settings"]["method"]}).items():
        epoch = triggers.first_epoch(trigger, rows, history)
        fired.append([name, "not in this record" if epoch is None else f"after epoch {epoch}"])
    fired.append(["this run", next((done["note"] for done in record["operations"] if "note" in done), "has not switched yet")])
    return [
        output.Sheet(f"{record['settings']['name']}: phase {rows[0]['phase']}", columns, table),
        output.Sheet("when each trigger would have ended it", ["trigger", "ends"], fired),
    ]


def draw(rows: list[dict[str, Any]]) -> Figure:
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


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pufferfish_bench.report.warmup", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--out", type=Path, metavar="FOLDER/NAME", help="write NAME.md, NAME.png and NAME.svg there")
    given = parser.parse_args(words)
    console = Console()
    with spoken_errors():
        record, rows = load(given.run)
        if missing := checked.missing_epochs(record, rows):
            complain(f"warning: the record in {given.run} is {without_rows(missing)}")
        rows = [row for row in rows if any(sign in row for sign in SIGNS) or row["phase"] == rows[0]["phase"]]
        if not any(sign in row for row in rows for sign in SIGNS):
            raise InputError(f"{given.run} records no warm-up and no search")
        with checked.asking(given.run):
            metric = record["summary"]["metric"] if "summary" in record else next(key for key in rows[0] if key in METRICS)
            shown = sheets(record, rows, metric, METRICS[metric])
        for sheet in shown:
            sheet.show(console)
        if given.out:
            output.write(given.out, {".md": "\n".join(sheet.markdown() for sheet in shown)}, console)
            charts.save(draw(rows), given.out, console)


if __name__ == "__main__":
    main(sys.argv[1:])
