"""Times over bandwidth: a curve through the measured rates of each method, and the bandwidths at which two of them cross.

Sending takes a time in proportion to 1 / bandwidth. So between two neighbouring measured rates a time is interpolated linearly in
1 / bandwidth, and the curve passes through every measured point. The end at unlimited bandwidth is not measured but predicted:
the step at the highest rate without its collectives. Nothing is said about rates below the lowest one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean

from pufferfish_bench.paper.bandwidth import by_rate
from pufferfish_bench.paper.outcome import Outcome
from pufferfish_bench.paper.statistics import Differences
from pufferfish_bench.paper.verdicts import Sample, spread_free
from pufferfish_bench.records.measured import PARTS

EPOCH, RATIO = "seconds_per_epoch", "communication_ratio"
LOCAL = [section for part, sections in PARTS.items() if part != "communication" for section in sections]
Points = Mapping[float, float]  # a value by bits per second in ascending order; the last may be at infinity


@dataclass(frozen=True)
class Curve:
    """The seconds of an epoch of one method by bits per second, in ascending order; one at infinity is predicted."""

    label: str
    samples: Mapping[float, Sample]

    @property
    def measured(self) -> list[float]:
        return [bits for bits in self.samples if bits < math.inf]

    @property
    def means(self) -> dict[float, float]:
        """Geometric means over seeds: their ratio is the mean speed-up of the claims."""
        return {bits: math.exp(fmean(map(math.log, sample.values))) for bits, sample in self.samples.items()}

    def of_seed(self, seed: int) -> dict[float, float]:
        return {bits: sample.by_seed[seed] for bits, sample in self.samples.items() if seed in sample.by_seed}

    @property
    def seeds(self) -> set[int]:
        """The seeds that every rate has."""
        return set.intersection(*(set(sample.by_seed) for sample in self.samples.values()))


@dataclass(frozen=True)
class Crossing:
    """The bandwidth at which two methods take the same time."""

    below: str  # the faster one at a lower bandwidth
    above: str
    bits: float
    of_seeds: tuple[float, ...]  # where the curves of single seeds cross, in ascending order; a seed may have none
    seeds: int  # that both methods have
    predicted: bool  # above the highest measured rate


def curves(found: Outcome) -> list[Curve]:
    """The curve of each method that is measured at two rates or more."""
    times = {figure.cell.name: figure.ours for figure in found.figures if figure.name == EPOCH and figure.ours}
    made = []
    for line, cells in by_rate(found.table.cells).items():
        samples = {bits: times[cell.name] for bits, cell in cells.items() if cell.name in times}
        if len(samples) < 2:
            continue
        fastest = found.records[cells[max(samples)].name]
        local = [record.epoch_seconds(*LOCAL) for record in fastest]
        if all(local):
            samples[math.inf] = Sample(tuple(local), samples[max(samples)].seeds)
        made.append(Curve(line, samples))
    return made


def ratios(found: Outcome, line: str) -> dict[float, float]:
    """Communication over computation of a method by bits per second, the mean over seeds; 0 at infinity."""
    of_cells = {figure.cell.name: figure.ours.mean for figure in found.figures if figure.name == RATIO and figure.ours}
    cells = by_rate(found.table.cells).get(line, {})
    measured = {bits: of_cells[cell.name] for bits, cell in cells.items() if cell.name in of_cells}
    return {**measured, math.inf: 0.0} if measured else {}


def papers_ratio(found: Outcome) -> tuple[str, float] | None:
    """The method for which the table has the paper's communication over computation, and that number."""
    there = [figure for figure in found.figures if figure.name == RATIO and figure.paper and figure.cell.line]
    return (there[0].cell.line, there[0].paper.mean) if there else None


def at(points: Points, bits: float) -> float:
    """The value at a bandwidth between two of the points."""
    if bits in points:
        return points[bits]
    for (low, one), (high, other) in pairwise(points.items()):
        if low < bits < high:
            return one + (other - one) * (1 / bits - 1 / low) / (1 / high - 1 / low)
    raise ValueError(f"{bits} is outside the points, from {min(points)} to {max(points)}")


def meetings(one: Points, other: Points) -> list[tuple[float, bool]]:
    """Where two curves cross, in ascending order: the bandwidth, and whether the first one is the lower curve below it."""
    gaps = [(bits, one[bits] - other[bits]) for bits in one if bits in other]
    found = []
    last: tuple[float, float] | None = None  # the last point at which they differ
    equal: float | None = None  # the first point since then at which they are equal
    for bits, gap in gaps:
        if not gap:
            equal = bits if equal is None else equal
            continue
        if last and last[1] * gap < 0:
            start, before = last
            between = 1 / (1 / start + (1 / bits - 1 / start) * before / (before - gap))
            found.append((between if equal is None else equal, before < 0))
        last, equal = (bits, gap), None
    return found


def crossings(drawn: Sequence[Curve]) -> list[Crossing]:
    """All points at which two methods change places, in ascending order of bandwidth."""
    found = []
    for one, other in combinations(drawn, 2):
        seeds = one.seeds & other.seeds
        highest = max({*one.measured} & {*other.measured}, default=0.0)
        of_seeds = [meetings(one.of_seed(seed), other.of_seed(seed)) for seed in sorted(seeds)]
        for bits, first in meetings(one.means, other.means):
            near = (nearest(bits, (place for place, same in places if same == first)) for places in of_seeds)
            own = tuple(sorted(place for place in near if place is not None))
            below, above = (one, other) if first else (other, one)
            found.append(Crossing(below.label, above.label, bits, own, len(seeds), bits > highest))
    return sorted(found, key=lambda crossing: crossing.bits)


def nearest(bits: float, places: Iterable[float]) -> float | None:
    return min(places, key=lambda place: abs(math.log(place / bits)), default=None)


def interval(sample: Sample) -> tuple[float, float] | None:
    """The 95 % interval of a time, from the logarithms of its values; None for a single seed or equal values."""
    return of_logarithms([math.log(value) for value in sample.values])


def speedup(curve: Curve, base: Curve, bits: float) -> tuple[float, tuple[float, float] | None]:
    """How many times as fast as `base` a method is at one rate, with the 95 % interval; paired by seed."""
    pairs = curve.samples[bits].by_seed, base.samples[bits].by_seed
    logarithms = [math.log(pairs[1][seed] / pairs[0][seed]) for seed in pairs[0] if seed in pairs[1]]
    if not logarithms:
        return base.means[bits] / curve.means[bits], None
    return math.exp(fmean(logarithms)), of_logarithms(logarithms)


def of_logarithms(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2 or spread_free(values):
        return None
    low, high = Differences.paired(values).interval()
    return math.exp(low), math.exp(high)
