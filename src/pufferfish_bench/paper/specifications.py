"""What the paper prints about its models and recipes, line by line, and how each line compares with ours. Needs no torch.

The lines are in specifications.yaml, by table and cell. `paper` is the value as printed, `ours` the names of ours, or patterns.
For a misprint, `instead` is the right value and `misprint` says how we know. A line without `ours` says why it is not tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import yaml_files
from pufferfish_bench.paper import verdicts
from pufferfish_bench.paper.numbers import same_digits

ABSENT = "none"  # the value of a name that ours does not have
KNOWN = {"line", "paper", "ours", "instead", "misprint", "untested", "about"}
Value = Sequence[int] | float | str


@dataclass(frozen=True)
class Line:
    """A line of the paper about a layer or a setting."""

    name: str
    paper: Value
    ours: tuple[str, ...]  # patterns of our names
    instead: Value | None = None  # what should be printed; None: the line is right
    misprint: str = ""  # how we know that it is not
    untested: str = ""  # why there is nothing of ours to compare it with
    about: bool = False  # a rounded number: ours must equal it in the digits that are printed

    @classmethod
    def parse(cls, own: Mapping[str, Any]) -> "Line":
        name, patterns = own["line"], own.get("ours", ())
        if unknown := sorted(set(own) - KNOWN):
            raise InputError(f"{name}: {', '.join(unknown)}: not known; allowed: {', '.join(sorted(KNOWN))}")
        if ("instead" in own) != ("misprint" in own):
            raise InputError(f"{name}: a misprint needs both `instead`, the right value, and `misprint`, how we know")
        if bool(patterns) == ("untested" in own):
            raise InputError(f"{name}: give either `ours`, names of our values, or `untested`, why there are none")
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        return cls(name, own["paper"], patterns, own.get("instead"), own.get("misprint", ""), own.get("untested", ""),
                   own.get("about", False))  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A line of the paper, our values for it, and the verdict."""

    cell: str
    line: Line
    names: tuple[str, ...]  # of our values
    ours: tuple[Value, ...]  # the different ones among them
    verdict: str


def lines(table: str, cell: str) -> tuple[Line, ...]:
    """The paper's lines about a cell."""
    try:
        return tuple(map(Line.parse, content()[table][cell]))
    except KeyError:
        raise InputError(f"{table}: specifications.yaml has no lines for {cell}") from None


@cache
def content() -> Mapping[str, Any]:
    return yaml_files.read(Path(__file__).with_name("specifications.yaml"))


def compare(cell: str, line: Line, inspected: Mapping[str, Value] | None) -> Comparison:
    """Compare one line with everything that was found in our model or recipe; None: it was not looked at."""
    if line.untested or inspected is None:
        return Comparison(cell, line, (), (), verdicts.not_tested(line.untested) if line.untested else verdicts.NOT_RUN)
    names = tuple(name for name in inspected if any(fnmatchcase(name, pattern) for pattern in line.ours))
    values = [inspected[name] for name in names] or [ABSENT]
    return Comparison(cell, line, names, tuple(distinct(values)), verdict(line, values))


def verdict(line: Line, values: Sequence[Value]) -> str:
    """A misprint is one only if ours is what it should be; any other difference is a difference."""
    if all(equal(value, line.paper, about=line.about) for value in values):
        return verdicts.EQUAL
    if line.instead is not None and all(equal(value, line.instead, about=line.about) for value in values):
        return f"misprint: {line.misprint}"
    return verdicts.DIFFERENT


def equal(ours: Value, printed: Value, *, about: bool = False) -> bool:
    """Whether shapes, words and numbers are the same; `about`: a number in the digits that are printed."""
    if about and is_number(ours) and is_number(printed):
        return same_digits(float(ours), float(printed))
    return list(ours) == list(printed) if is_list(ours) and is_list(printed) else ours == printed


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_list(value: Value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def distinct(values: Sequence[Value]) -> list[Value]:
    """Each value once, in order."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


def show(value: Value) -> str:
    """512x128x3x3 for a shape of several sides; 9,521; 0.1."""
    if is_list(value):
        whole = all(isinstance(side, int) for side in value)
        return ("x" if whole else ", ").join(f"{side}" for side in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.10g}" if isinstance(value, float) else value
