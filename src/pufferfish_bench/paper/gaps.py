"""The gap between two nets at each training budget, from the records of a table with `picture: gaps`. Writes nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pufferfish_bench.paper import budget, tables
from pufferfish_bench.paper.budget import GapSettings, Pair, Trend
from pufferfish_bench.paper.cells import BudgetRun
from pufferfish_bench.paper.numbers import PaperNumber, paper_number
from pufferfish_bench.paper.quantities import Quantity, quantity
from pufferfish_bench.paper.tables import PaperTable
from pufferfish_bench.paper.verdicts import Sample, sample
from pufferfish_bench.records.record import Record

OTHER_BUDGETS = "not comparable (different budgets)"

Records = Mapping[str, Sequence[Record]]  # by cell
Samples = Mapping[tuple[str, str], Sample | None]  # by cell and quantity
WhyIncomparable = Callable[[Sequence[Record], Quantity], str | None]  # why runs cannot be compared; None: they can


@dataclass(frozen=True)
class Point:
    """The two nets at one budget."""

    budget: float  # a multiple of the recipe's epochs
    epochs: int | None  # None: not run
    images: int | None  # seen in training: steps x batch size x workers
    vanilla: Sample | None
    pufferfish: Sample | None

    @property
    def gap(self) -> Sample | None:
        """Vanilla minus Pufferfish for each seed that both have."""
        if self.vanilla is None or self.pufferfish is None:
            return None
        other = self.pufferfish.by_seed
        found = {seed: value - other[seed] for seed, value in self.vanilla.by_seed.items() if seed in other}
        return sample(list(found.values()), list(found))


@dataclass(frozen=True)
class PaperPoint:
    """The paper's two numbers at the paper's budget."""

    epochs: int
    images: int
    vanilla: PaperNumber
    pufferfish: PaperNumber

    @property
    def gap(self) -> PaperNumber:
        """The standard deviation is that of a difference of two single runs; the paper's runs are not paired."""
        deviations = [number.deviation for number in (self.vanilla, self.pufferfish) if number.deviation is not None]
        spread = math.hypot(*deviations) if len(deviations) == 2 else None
        return PaperNumber(self.vanilla.mean - self.pufferfish.mean, spread)


@dataclass(frozen=True)
class GapCurve:
    """The gap of one net over the budget."""

    net: str
    points: tuple[Point, ...]  # in ascending order of the budget
    paper: PaperPoint
    trend: Trend

    @property
    def sentence(self) -> str:
        return self.trend.sentence(self.net)


def gap_curves(
    table: PaperTable, records: Records, samples: Samples, numbers: Mapping[str, Any], incomparable: WhyIncomparable
) -> tuple[GapCurve, ...]:
    """A curve for each pair of nets; none if nothing was run, or if the table is not about gaps."""
    if table.gaps is None or not any(records.values()):
        return ()
    papers_table = tables.read(table.name, "paper")
    return tuple(
        GapCurve(
            net=pair.net,
            points=(points := points_of(pair, table, records, samples)),
            paper=papers_point(pair, papers_table, table.gaps, numbers),
            trend=trend_of(pair, points, table, records, incomparable),
        )
        for pair in table.gaps.pairs
    )


def cells_of(line: str, table: PaperTable) -> dict[float, BudgetRun]:
    """The cells of a line by budget, in ascending order; a selection of cells may lack some."""
    found = {cell.budget: cell for cell in table.cells if isinstance(cell, BudgetRun) and cell.line == line}
    return dict(sorted(found.items()))


def points_of(pair: Pair, table: PaperTable, records: Records, samples: Samples) -> tuple[Point, ...]:
    vanilla, pufferfish, asked = cells_of(pair.vanilla, table), cells_of(pair.pufferfish, table), table.gaps.quantity
    found = []
    for share in sorted(vanilla.keys() & pufferfish.keys()):
        one, other = vanilla[share].name, pufferfish[share].name
        runs = [*records[one], *records[other]]
        found.append(
            Point(
                budget=share,
                epochs=len(runs[0].rows) if runs else None,
                images=images_seen(runs[0]) if runs else None,
                vanilla=samples[one, asked],
                pufferfish=samples[other, asked],
            )
        )
    return tuple(found)


def images_seen(record: Record) -> int:
    return sum(row["steps"] for row in record.rows) * record.run["settings"]["batch_size"] * record.run.get("world_size", 1)


def papers_point(pair: Pair, table: PaperTable, settings: GapSettings, numbers: Mapping[str, Any]) -> PaperPoint:
    """The paper's numbers at the epochs of its own recipe."""
    epochs = next(iter(cells_of(pair.vanilla, table).values())).recipe()["epochs"]
    images, vanilla, pufferfish = (paper_number(numbers, path, {}) for path in (settings.paper_images, *pair.paper))
    return PaperPoint(epochs, round(epochs * images.mean), vanilla, pufferfish)


def trend_of(pair: Pair, points: Sequence[Point], table: PaperTable, records: Records, incomparable: WhyIncomparable) -> Trend:
    """The trend over the images that were seen, so that budgets which round to the same epochs count once."""
    settings = table.gaps
    runs = [
        record
        for line in (pair.vanilla, pair.pufferfish)
        for cell in cells_of(line, table).values()
        for record in records[cell.name]
    ]
    there = {point.images: point.gap.by_seed for point in points if point.images and point.gap}
    found = budget.trend(there, settings.flat)
    why = incomparable(runs, quantity(settings.quantity)) if runs else None
    if why is None and not same_budgets(pair, table, records):
        why = OTHER_BUDGETS
    return Trend(why, found.budgets, found.seeds) if why else found


def same_budgets(pair: Pair, table: PaperTable, records: Records) -> bool:
    """Whether both nets have seen equally many images at each budget."""
    lines = [cells_of(line, table) for line in (pair.vanilla, pair.pufferfish)]
    for share in lines[0].keys() & lines[1].keys():
        if len({images_seen(record) for cells in lines for record in records[cells[share].name]}) > 1:
            return False
    return True
