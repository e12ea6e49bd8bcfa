"""Types of settings with the range they may take: annotations of constructors, read by config/signatures.py. Needs no torch."""

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`; an open end is excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        ends = []
        if self.low > -math.inf:
            ends.append(f"{'above' if self.open_low else 'at least'} {self.low:g}")
        if self.high < math.inf:
            ends.append(f"{'below' if self.open_high else 'at most'} {self.high:g}")
        return " and ".join(ends)


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, open_low=True)]
InnerShare = Annotated[float, Range(0, 1, open_low=True, open_high=True)]
Decay = Annotated[float, Range(0, 1, open_high=True)]  # of a running mean; also the probability of dropout
