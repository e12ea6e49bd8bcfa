"""How a chart looks and is kept: colours that the colour-blind can tell apart, and the same bytes for the same figures."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pufferfish_bench.report import output

# Okabe and Ito's palette; the yellow is left out, it is faint on white
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#000000",
)  # fmt: skip
LINES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK)
MARKERS = "osD^vPX*"
WIDTH = 6.0  # inches of a picture that stands beside its table
SMALL, LETTERS_AN_INCH = 7, 17  # points, and how many letters of that size fit beside one another

STYLE = {
    "svg.hashsalt": "pufferfish",  # names inside an SVG are drawn from it: else each drawing differs
    "svg.fonttype": "none",  # letters stay letters: a quarter of the size, and the reader can search them
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first travels with matplotlib
    "font.size": 11,
    "axes.titlesize": 12,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.15,  # inches: the outermost tick labels are not cut
    "savefig.dpi": 150,
    "text.parse_math": False,  # a $ in a name is a $
}


@contextmanager
def style() -> Iterator[None]:
    """The look of every chart, whatever the reader's own matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def save(figure: Figure, out: Path, console: Console) -> None:
    """Write PNG and SVG without a date or a version in them, and say where."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        path = out.with_name(out.name + ending)
        beside = path.with_name(path.name + ".part")
        figure.savefig(beside, format=ending[1:], metadata=metadata)
        beside.replace(path)
        output.say_written(path, console)


def title(words: str) -> str:
    """On as many lines as it needs above a picture of the usual width."""
    return textwrap.fill(words, 58)


def write_at_foot(figure: Figure, words: str) -> None:
    """Small words at the bottom left: what the picture was made of."""
    lines = textwrap.fill(words, int(LETTERS_AN_INCH * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=SMALL, color="#555555")


def look(number: int) -> dict[str, str]:
    """Colour and marker of the number-th line."""
    return {"color": LINES[number % len(LINES)], "marker": MARKERS[number % len(MARKERS)]}


def in_lines(label: str) -> str:
    """A long label on several lines, broken after a hyphen or a plus."""
    return textwrap.fill(label.replace("+", "+ "), 14, break_long_words=False).replace("+ ", "+")


def only_these_ticks(axes: Axes, values: list[int]) -> None:
    """Label the x axis with the values themselves."""
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
