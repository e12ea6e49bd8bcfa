"""The benchmark's table: a pure function of the files of its subjects. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.bench import pictures
from pufferfish_bench.bench.row import Row, number
from pufferfish_bench.bench.suite import SUBJECTS
from pufferfish_bench.records.files import read_json, replace_file
from pufferfish_bench.report import charts, tables

README, PICTURE, GROWTH = "README.md", "bench", "growth"  # file names, pictures without ending
COLUMNS = ("row", "ours", "rival", "ratio", "spread", "limit", "target", "met")
INTRODUCTION = """\
Contenders take turns in one process; start-up and memory compare whole processes. A ratio is the median over rounds, the spread
its lowest and highest value. With a target ">=" a ratio says how many times as fast ours is as its rival, with "<=" and "<"
which share of the rival's time or memory it needs. The limit is the ratio of the operations (MACs) of two nets, 1 where ours
does what the rival does and more, or what the notes say. `make bench` measures everything again; the figures of a row are in the
JSON file of its subject."""


@dataclass(frozen=True)
class Results:
    """What the files of the subjects hold, in the order of the table."""

    files: dict[str, dict[str, Any]]  # subject -> content

    @property
    def rows(self) -> list[Row]:
        return [Row.from_json(entry) for content in self.files.values() for entry in content["rows"]]

    @property
    def missing(self) -> list[str]:
        return [subject for subject in SUBJECTS if subject not in self.files]

    @property
    def growth(self) -> dict[str, Any] | None:
        return self.files[GROWTH]["figures"] if GROWTH in self.files else None


def read(folder: Path) -> Results:
    """The results in a folder; other files in it are ignored."""
    found = {subject: folder / f"{subject}.json" for subject in SUBJECTS}
    files = {subject: read_json(path) for subject, path in found.items() if path.exists()}
    if not files:
        raise InputError(f"{folder} has no results: measure them with `make bench`, or name another folder with --out DIR")
    return Results(files)


def render(folder: Path, console: Console) -> None:
    """Write the table and the pictures beside the files of a folder, and show the table."""
    results = read(folder)
    with charts.style():
        if results.rows:
            charts.save(pictures.ratios(results.rows), folder / PICTURE, console)
        if results.growth:
            charts.save(pictures.growth(results.growth), folder / GROWTH, console)
    replace_file(folder / README, page(results))
    shown = tables.table(*COLUMNS, title=summary(results), left=(0, 1, 2, 7))
    for row in results.rows:
        shown.add_row(*cells(row))
    tables.show(shown, console, dispensable=("spread", "limit"))


def page(results: Results) -> str:
    """The page as Markdown."""
    parts = [
        "# Speed, as ratios",
        INTRODUCTION,
        conditions(results),
        f"**{summary(results)}**",
        markdown(COLUMNS, [cells(row) for row in results.rows]),
        f"![ratios against targets and limits]({PICTURE}.png)" if results.rows else "",
        "## Notes",
        "\n".join(f"- **{row.name}.** {row.note}" for row in results.rows if row.note),
        *growth(results.growth),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(results: Results) -> str:
    """How many targets are met."""
    rows = results.rows
    missing = f"; not measured: {', '.join(results.missing)}" if results.missing else ""
    return f"{sum(row.met for row in rows)} of {len(rows)} targets met{missing}"


def conditions(results: Results) -> str:
    """Under which conditions the results were measured."""
    contents = list(results.files.values())
    quick = any(content["quick"] for content in contents)
    minutes = sum(content["took_seconds"] for content in contents) / 60
    commits = unique((content["commit"] or "unknown")[:9] + " with changes" * bool(content["dirty"]) for content in contents)
    where = unique(f"{content['hardware']['device']}, {content['hardware']['cores']} cores" for content in contents)
    versions = unique(f"torch {content['versions']['torch']}" for content in contents)
    words = f"Measured in {minutes:.0f} minutes on {where}; {versions}; commit {commits}."
    return words + " A quick run, with fewer rounds and smaller sizes than the targets are meant for." * quick


def unique(words: Any) -> str:
    return " and ".join(dict.fromkeys(words))


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row, one for each of COLUMNS."""
    return (
        row.name,
        f"{row.ours}: {value(row.ours_value, row.unit)}",
        f"{row.rival}: {value(row.rival_value, row.unit)}",
        row.ratio_text,
        f"{number(row.lowest)} to {number(row.highest)}",
        "" if row.limit is None else number(row.limit),
        row.target_text,
        "yes" if row.met else "no",
    )


def value(amount: float, unit: str) -> str:
    """Seconds, bytes or a rate, with a unit that fits."""
    if unit == "s":
        return f"{amount:.2f} s" if amount >= 1 else f"{1e3 * amount:.3g} ms"
    if unit == "B":
        return f"{amount / 1e6:,.0f} MB"
    return f"{amount:,.0f} {unit}"


def growth(found: dict[str, Any] | None) -> list[str]:
    """The section about width and batch."""
    if not found:
        return []
    rows = [
        (f"{point['width']:g}", f"{point['batch_size']}", value(point["vanilla"], "s"), value(point["hybrid"], "s"),
         number(point["times_as_fast"]), number(point["macs_ratio"]))
        for point in found["points"]
    ]  # fmt: skip
    measured = sorted({point["width"] for point in found["points"]})
    return [
        "## How cost grows",
        "A training step of ResNet-18 over its width and the batch.",
        markdown(("width", "batch", "vanilla", "hybrid", "times as fast", "limit (MACs)"), rows),
        "\n".join(f"- Batch {size}: {pays(width, measured)}" for size, width in found["pays_from_width"].items()),
        f"![step time over width]({GROWTH}.png)",
    ]


def pays(width: float | None, measured: Sequence[float]) -> str:
    """From which width on the hybrid net is faster, in words."""
    if width is None:
        return f"the hybrid net is not faster at any width up to {measured[-1]:g}."
    if width == measured[0]:
        return f"the hybrid net is faster at all measured widths, from {width:g} on."
    return f"the hybrid net is faster from width {width:.2f} on (interpolated)."


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
