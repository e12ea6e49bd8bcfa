"""The style of all charts and how they are saved: colour-blind-safe colours, and the same bytes for the same data."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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


class Picture(NamedTuple):
    """A chart that was saved as PNG and SVG."""

    path: Path  # without its ending
    shows: str  # what is to be seen, for readers who cannot see it

    def file(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


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
        if ending == ".svg":
            beside.write_text(compact(beside.read_text(encoding="utf-8")), encoding="utf-8")
        beside.replace(path)
        output.say_written(path, console)


def compact(svg: str) -> str:
    """An SVG that looks the same with a quarter less text, and with its clip paths numbered in order of use.

    Indentation, rotations by nothing and names of elements are left out. Matplotlib names clip paths by a hash of their
    positions, whose last digits the layout of several panels does not reproduce.
    """
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"| id="[A-Za-z.]+2?d?_\d+"', "", re.sub(r"\n +", "\n", svg))
    names = dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]{10})\)", svg))
    for place, name in enumerate(names, start=1):
        svg = svg.replace(f"url(#{name})", f"url(#clip{place})").replace(
            f'<clipPath id="{name}">', f'<clipPath id="clip{place}">'
        )
    return svg


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
    """What every picture draws around the mean of some runs: its 95 % interval, nothing if it has none."""
    return distances([(sample.mean, sample.interval) for sample in samples])


def distances(values: Sequence[tuple[float, tuple[float, float] | None]]) -> list[list[float]]:
    """From values and their intervals, the distances down and up that matplotlib draws as error bars.

    They are rounded to ten digits: the last digits of a quantile differ between machines, and with them the bytes of a picture.
    """
    ends = [(value, interval or (value, value)) for value, interval in values]
    below = [value - low for value, (low, _) in ends]
    above = [high - value for value, (_, high) in ends]
    return [[float(f"{distance:.10g}") for distance in side] for side in (below, above)]


def in_lines(label: str) -> str:
    """A long label on several lines, broken after a hyphen or a plus."""
    return textwrap.fill(label.replace("+", "+ "), 14, break_long_words=False).replace("+ ", "+")


def only_these_ticks(axes: Axes, values: list[int]) -> None:
    """Label the x axis at these values only."""
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
