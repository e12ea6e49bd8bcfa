"""One row of the benchmark's table: ours and its rival, their ratio over rounds, and the target. Needs no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pufferfish_bench.bench.targets import TARGETS, Direction

Side = tuple[str, Sequence[float]]  # a name, and its cost in each round: seconds or bytes
COMPARE = {">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b, "<": lambda a, b: a < b}


@dataclass(frozen=True)
class Row:
    """The median of each side, and the median, lowest and highest ratio over rounds."""

    name: str
    ours: str
    ours_value: float
    rival: str
    rival_value: float
    unit: str  # of both values: s (seconds), B (bytes) or a rate such as images/s
    ratio: float
    lowest: float
    highest: float
    direction: Direction
    target: float
    limit: float | None
    note: str  # what was found

    @property
    def met(self) -> bool:
        return COMPARE[self.direction](self.ratio, self.target)

    @property
    def ratio_text(self) -> str:
        """The ratio, with more digits if it would otherwise look the same as the target."""
        text = number(self.ratio)
        return f"{self.ratio:.4g}" if text == number(self.target) else text

    @property
    def target_text(self) -> str:
        return f"{self.direction} {number(self.target)}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "Row":
        return cls(**{key: value for key, value in entry.items() if key != "met"})


def number(ratio: float) -> str:
    """A ratio with two digits after the point, three below 0.1, one from 10 on."""
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def compare(
    key: str, ours: Side, rival: Side, *, limit: float | None = None, unit: str = "s", count: int | None = None, note: str = ""
) -> Row:
    """The row of the target `key`. With `count`, which `unit` names, the values are `count` per second instead of seconds.

    A target ">=" is about how many times as fast ours is, "<=" and "<" about the share of the rival's cost that ours has.
    """
    target = TARGETS[key]
    limit = target.limit if limit is None else limit
    faster = target.direction == ">="
    ratios = [b / a if faster else a / b for a, b in zip(ours[1], rival[1], strict=True)]
    medians = [statistics.median(side[1]) for side in (ours, rival)]
    ours_value, rival_value = (count / median for median in medians) if count else medians
    return Row(
        name=target.row,
        ours=ours[0],
        ours_value=ours_value,
        rival=rival[0],
        rival_value=rival_value,
        unit=unit,
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        direction=target.direction,
        target=target.resolved(limit),
        limit=limit,
        note=note,
    )
