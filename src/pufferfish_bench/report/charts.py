"""The style of all charts and how they are saved: colour-blind-safe colours, and the same bytes for the same data."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.report import output

# Okabe and Ito's palette without its yellow, which is faint on white
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#000000",
)  # fmt: skip
LINES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK)
MARKERS = "osD^vPX*"
WIDTH = 6.0  # inches, for a picture beside its table
SMALL, LETTERS_PER_INCH = 7, 17  # font size in points, and how many letters of it fit in an inch

STYLE = {
    "svg.hashsalt": "pufferfish",  # seeds the ids inside an SVG, which would otherwise be random
    "svg.fonttype": "none",  # text stays text: a quarter of the size, and searchable
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first is part of matplotlib
    "font.sans-serif": ["DejaVu Sans"],  # by default ten fonts, which an SVG would name for every text
    "font.size": 11,
    "axes.titlesize": 12,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.15,  # inches: keeps the outermost tick labels from being cut
    "savefig.dpi": 150,
    "text.parse_math": False,  # a $ in a name stays a $
}


@contextmanager
def style() -> Iterator[None]:
    """Use the project's chart style, independent of the user's matplotlibrc."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def save(figure: Figure, out: Path, console: Console) -> None:
    """Write PNG and SVG without date or version, and print their paths."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        path = out.with_name(out.name + ending)
        beside = path.with_name(path.name + ".part")
        figure.savefig(beside, format=ending[1:], metadata=metadata)
        beside.replace(path)
        output.say_written(path, console)


def title(words: str) -> str:
    """A title wrapped to the usual width of a picture."""
    return textwrap.fill(words, 58)


def write_at_foot(figure: Figure, words: str) -> None:
    """Write a small note at the bottom left: what the picture was made from."""
    lines = textwrap.fill(words, int(LETTERS_PER_INCH * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=SMALL, color="#555555")


def look(number: int) -> dict[str, str]:
    """Colour and marker of line `number`."""
    return {"color": LINES[number % len(LINES)], "marker": MARKERS[number % len(MARKERS)]}


def error_bars(samples: Sequence[Sample]) -> list[list[float]]:
    """What every picture draws around a mean: the distances down and up to the ends of its 95 % interval, 0 if it has none."""
    ends = [sample.interval or (sample.mean, sample.mean) for sample in samples]
    pairs = list(zip(samples, ends, strict=True))
    return [[sample.mean - low for sample, (low, _) in pairs], [high - sample.mean for sample, (_, high) in pairs]]


def in_lines(label: str) -> str:
    """A long label on several lines, broken after a hyphen or a plus."""
    return textwrap.fill(label.replace("+", "+ "), 14, break_long_words=False).replace("+ ", "+")


def only_these_ticks(axes: Axes, values: list[int]) -> None:
    """Label the x axis at these values only."""
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
