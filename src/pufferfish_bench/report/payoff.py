"""Does the second of two runs pay? A row for each quantity with its ratio, and one sentence."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from pufferfish_bench.base.console import say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.quantities import label
from pufferfish_bench.records import reader
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import output, tables

NUMBER_BYTES = 4  # of a gradient in float32
SVG_COLUMNS = 100
EQUAL = 1.005  # a ratio below this prints as 1.00x
COUNT, TIME = ("fewer", "more", "as many"), ("faster", "slower", "as fast")


@dataclass(frozen=True)
class Saving:
    """A quantity of which less is better, in both runs."""

    name: str
    first: float
    second: float
    show: Callable[[float], str]
    words: tuple[str, str, str]  # for less, more, and as much of it

    @property
    def ratio(self) -> float:
        return self.first / self.second

    @property
    def text(self) -> str:
        """The ratio in words, such as "3.27x fewer"."""
        ratio, (less, more, equal) = self.ratio, self.words
        if 1 / EQUAL < ratio < EQUAL:
            return equal
        return f"{ratio:.2f}x {less}" if ratio > 1 else f"{1 / ratio:.2f}x {more}"


def gradient_bytes(record: Record) -> int:
    """Bytes that a worker gives to the collectives in a step; of a run of one process, what an allreduce would be given."""
    summary = record.summary
    return summary["bytes_per_step"] or NUMBER_BYTES * summary.get("trainable_parameters", summary["parameters"])


def savings(first: Record, second: Record) -> list[Saving]:
    """What the second run saves. Times of an epoch are those of the last phase."""

    quantities: list[tuple[str, Callable[[Record], float], str, tuple[str, str, str]]] = [
        ("parameters", lambda record: record.summary["parameters"], "{:,.0f}", COUNT),
        ("MACs", lambda record: record.summary["macs"], "{:,.0f}", COUNT),
        ("gradients, bytes a step", gradient_bytes, "{:,.0f}", COUNT),
        ("seconds an epoch, last phase", lambda record: record.summary["seconds_per_epoch"], "{:.2f}", TIME),
        ("seconds in all", lambda record: record.total_seconds, "{:.1f}", TIME),
    ]
    return [Saving(name, number(first, read), number(second, read), form.format, words) for name, read, form, words in quantities]


def number(record: Record, read: Callable[[Record], float]) -> float:
    with reader.asking(record.folder):
        return read(record)


def gain(first: Record, second: Record) -> float:
    """By how much the metric of the second run is better, in the last epoch; negative if it is worse."""
    if first.metric != second.metric:
        raise InputError(
            f"{first.folder} is evaluated by {first.metric}, {second.folder} by {second.metric}: give two runs of the same task"
        )
    difference = second.summary[second.metric] - first.summary[first.metric]
    return difference if first.higher_is_better else -difference


def names(first: Record, second: Record) -> tuple[str, str]:
    """The names of the directories, or of the nearest folders above them that differ: records of tables are in CELL/seed1."""
    one, other = first.folder.resolve(), second.folder.resolve()
    for left, right in zip((one, *one.parents), (other, *other.parents), strict=False):
        if left.name != right.name:
            return left.name, right.name
    return one.name, other.name


def sentence(first: Record, second: Record) -> str:
    """The answer in one sentence."""
    parameters, _, _, epoch, total = savings(first, second)
    better = gain(first, second)
    unit = " points" if "accuracy" in first.metric else ""
    quality = f"{abs(better):.2f}{unit} {'better' if better > 0 else 'worse'}" if abs(better) >= 0.005 else "the same"
    one, other = names(first, second)
    return (
        f"{other} against {one}: {parameters.text} parameters, epochs {epoch.text}, the whole run {total.text}, and its "
        f"{label(first.metric).removesuffix(', %')} is {quality}."
    )


def show(first: Record, second: Record, console: Console) -> None:
    """Print the table and the sentence."""
    for record in (first, second):
        if "summary" not in record.run:
            raise InputError(f"the run in {record.folder} is not finished: run its command again to continue it")
    rows = savings(first, second)
    better = gain(first, second)
    shown = tables.table("quantity", *names(first, second), "ratio or difference")
    for row in rows:
        shown.add_row(row.name, row.show(row.first), row.show(row.second), row.text)
    metric = first.metric
    shown.add_row(label(metric), f"{first.summary[metric]:.2f}", f"{second.summary[metric]:.2f}", f"{better:+.2f}")
    tables.show(shown, console)
    say(sentence(first, second), console)


def write(first: Record, second: Record, path: Path, console: Console) -> None:
    """Write what `show` prints as a picture."""
    printed = io.StringIO()
    show(first, second, Console(file=printed, width=SVG_COLUMNS))
    recorder = Console(record=True, width=SVG_COLUMNS, file=io.StringIO())
    recorder.print(Text(printed.getvalue().strip("\n")))
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = recorder.export_svg(title="pufferfish payoff", unique_id="payoff", code_format=without_web_fonts(CONSOLE_SVG_FORMAT))
    path.write_text(svg, encoding="utf-8")
    output.say_written(path, console)


def without_web_fonts(code: str) -> str:
    """Rich's format for an SVG without the fonts that it would load from the network."""
    return re.sub(r"@font-face \{\{.*?\}\}\s*", "", code, flags=re.DOTALL)
