"""The outcome of a table: the records of its cells, their numbers, and a verdict on each number and claim. Writes nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.paper import statistics, verdicts
from pufferfish_bench.paper.cells import Cell
from pufferfish_bench.paper.gaps import GapCurve, gap_curves
from pufferfish_bench.paper.gates import Finding, failures
from pufferfish_bench.paper.numbers import PaperNumber, paper_number
from pufferfish_bench.paper.quantities import Quantity, quantity
from pufferfish_bench.paper.relations import Evidence, Relation
from pufferfish_bench.paper.specifications import Comparison
from pufferfish_bench.paper.tables import PaperTable
from pufferfish_bench.paper.verdicts import Judgement, Sample
from pufferfish_bench.records import machine_load, provenance, reader
from pufferfish_bench.records.files import EPOCHS, RUN, Row, without_rows
from pufferfish_bench.records.record import UNTRAINED, Record
from pufferfish_bench.records.run_directory import differences

NEEDED = ("operations", *(f"summary.{key}" for key in ("metric", "parameters", "macs", "seconds", "seconds_per_epoch", "step")))
NEEDED_IN_ROWS = ("seconds", "steps", "timed_steps")
AGAIN = "delete the folder and run `make <table>` again"


@dataclass(frozen=True)
class Figure:
    """One quantity of a cell: the paper's number and ours."""

    cell: Cell
    name: str
    quantity: Quantity
    paper: PaperNumber | None
    ours: Sample | None
    verdict: str
    machines: Sequence[str] = ()  # that our values were measured on

    @property
    def full_verdict(self) -> str:
        """The verdict; on a time, with the machines that it was measured on: the paper's has V100 GPUs."""
        named = self.quantity.is_time and self.machines and self.verdict in verdicts.COMPARED
        return f"{self.verdict} on {' and '.join(map(printable, self.machines))}" if named else self.verdict

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, where the two are comparable."""
        comparable = self.ours and self.paper and self.verdict not in (*verdicts.INCOMPARABLE, verdicts.OF_THAT_ORDER)
        return self.ours.mean - self.paper.mean if comparable else None


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, with its own ratio or difference if it has one, and what our runs say about it."""

    relation: Relation
    quantity: Quantity
    paper: float | None
    judgement: Judgement

    @property
    def ours(self) -> float | None:
        """The ratio (for times, the speed-up) or the difference, as the paper states it."""
        return self.judgement.ratio if self.is_ratio else self.judgement.difference

    @property
    def is_ratio(self) -> bool:
        return self.relation.is_ratio(self.quantity)


@dataclass(frozen=True)
class Outcome:
    """A table of the paper with everything that was measured for it."""

    table: PaperTable
    records: Mapping[str, tuple[Record, ...]]  # by cell, in the order of the seeds
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)  # by name of the table's gates
    gaps: Sequence[GapCurve] = ()  # over the training budget
    comparisons: tuple[Comparison, ...] = ()  # line by line, for a table that describes and does not measure

    @property
    def provenance(self) -> list[str]:
        """Profile, commits, machines and dates of all records."""
        runs = [record.run for records in self.records.values() for record in records]
        return [f"profile {self.table.profile}", *provenance.of(runs)] if runs else []


def machines(records: Iterable[Record]) -> set[str]:
    sittings = [sitting for record in records for sitting in provenance.sittings_of(record.run)]
    return {provenance.machine(sitting) for sitting in sittings if "hardware" in sitting}


def crowded(record: Record) -> bool:
    """Whether there were more workers than cores. Older records lack the number of workers per machine: they used one machine."""
    for sitting in provenance.sittings_of(record.run):
        hardware = sitting.get("hardware", {})
        workers = hardware.get("workers", sitting.get("world_size", 1))
        if hardware.get("kind", "cpu") == "cpu" and workers > hardware.get("cores", math.inf):
            return True
    return False


def data(record: Record) -> Any:
    """The data settings of a run."""
    return without_seeds(record.run["settings"].get("dataset"))


def incomparable(records: Sequence[Record], asked: Quantity) -> str | None:
    """Why these runs cannot be compared; None if they can."""
    if any(data(record) != data(records[0]) for record in records):
        return verdicts.OTHER_DATA
    if asked.is_time and len(machines(records)) > 1:
        return verdicts.TWO_MACHINES
    if asked.is_time and any(crowded(record) for record in records):
        return verdicts.CROWDED
    return None


def beside_others(records: Iterable[Record], asked: Quantity) -> bool:
    """Whether a time was measured while other processes used the machine."""
    return asked.is_time and any(machine_load.had_company(record.run) for record in records)


def seeds_missing(judgement: Judgement, relation: Relation, table: PaperTable, found: Mapping[str, Sequence[Record]]) -> str:
    """How many of the seeds that were fixed in advance are there, if some are missing: a test before the end would be a peek.

    Counts are not tested. A single seed has a verdict of its own: the paper's profile compares it with the paper's spread.
    """
    ends = [found[cell] for cell, _ in relation.ends if table.cell(cell).has_seeds]
    done = min((len(records) for records in ends), default=table.seeds)
    return f"{done} of {table.seeds} seeds" if judgement.p is not None and 1 < done < table.seeds else ""


def read(table: PaperTable, records: Path, numbers: Mapping[str, Any]) -> Outcome:
    """The outcome of a table from the records below `records`/<profile>/<table>/<cell>/seed<n>/."""
    found = {cell.name: read_cell(records / table.profile / table.name / cell.name) for cell in table.cells}
    samples = {(cell.name, name): sample(found[cell.name], quantity(name)) for cell in table.cells for name in cell.figures}
    figures = []
    for cell in table.cells:
        used = machines(found[cell.name])
        for name, path in cell.figures.items():
            ours, paper = samples[cell.name, name], paper_number(numbers, path, cell.sizes)
            verdict = cell.verdict(quantity(name), ours, paper, profile=table.profile, machines=used)
            if ours and beside_others(found[cell.name], quantity(name)):
                verdict = verdicts.BESIDE_OTHERS
            figures.append(Figure(cell, name, quantity(name), paper, ours, verdict, sorted(used)))
    findings = {name: gates.findings(found) for name, gates in table.gates.items()}
    claims = []
    for relation in table.relations:
        asked, paper = quantity(relation.quantity), papers_own(relation, table, numbers)
        judgement = relation.judge(
            Evidence(
                asked,
                *(samples[end] for end in relation.ends),
                paper=paper,
                deviation=papers_deviation(relation, table, numbers),
                full_size=table.profile == "paper" or not any(table.cell(cell).has_seeds for cell, _ in relation.ends),
            )
        )
        runs = [*found[relation.of], *found[relation.than]]
        if why := incomparable(runs, asked):
            judgement = judgement.without_verdict(why)
        elif beside_others(runs, asked):
            judgement = judgement.without_verdict(verdicts.BESIDE_OTHERS, keep_interval=True)
        elif why := (relation.gates and failures(findings[relation.gates])) or seeds_missing(judgement, relation, table, found):
            judgement = judgement.without_verdict(verdicts.not_tested(why), keep_interval=True)
        claims.append(Claim(relation, asked, paper, judgement))
    gaps = gap_curves(table, found, samples, numbers, incomparable)
    comparisons = tuple(line for cell in table.cells for line in cell.comparisons(found[cell.name]))
    return Outcome(table, found, tuple(figures), tuple(claims), findings, gaps, comparisons)


def corrected(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of all tables of a report, with verdicts by p values that are corrected for the number of their claims."""
    p_values = {
        (table, place): claim.judgement.p
        for table, found in enumerate(outcomes)
        for place, claim in enumerate(found.claims)
        if claim.judgement.p is not None
    }
    p_of = statistics.holm(p_values)

    def of(claim: Claim, key: tuple[int, int]) -> Claim:
        return replace(claim, judgement=claim.judgement.corrected(p_of[key], len(p_of))) if key in p_of else claim

    return [
        replace(found, claims=tuple(of(claim, (table, place)) for place, claim in enumerate(found.claims)))
        for table, found in enumerate(outcomes)
    ]


def papers_deviation(relation: Relation, table: PaperTable, numbers: Mapping[str, Any]) -> float | None:
    """The standard deviation of a difference by the paper's spreads of the two cells: what a single seed is compared with.

    It is that of the paper's experiments and says nothing about those of another profile.
    """
    if table.profile != "paper" or quantity(relation.quantity).is_time:
        return None
    deviations = [number.deviation for number in papers_ends(relation, table, numbers) if number and number.deviation]
    return math.hypot(*deviations) if len(deviations) == 2 else None


def papers_own(relation: Relation, table: PaperTable, numbers: Mapping[str, Any]) -> float | None:
    """The paper's ratio or difference: as printed, or computed from its numbers of the two cells."""
    printed = paper_number(numbers, relation.ratio or relation.difference, {})
    if printed:
        return printed.mean
    of, than = papers_ends(relation, table, numbers)
    if not (of and than):
        return None
    return than.mean / of.mean if relation.is_ratio(quantity(relation.quantity)) else of.mean - than.mean


def papers_ends(relation: Relation, table: PaperTable, numbers: Mapping[str, Any]) -> list[PaperNumber | None]:
    """The paper's numbers of the two ends of a relation."""
    ends = [(table.cell(cell), name) for cell, name in relation.ends]
    return [paper_number(numbers, cell.figures[name], cell.sizes) for cell, name in ends]


def read_cell(folder: Path) -> tuple[Record, ...]:
    """The finished runs of a cell, by seed. Runs with different settings are refused: their mean would be meaningless."""
    found = []
    for path in folder.glob(f"seed*/{RUN}"):
        seed = path.parent.name.removeprefix("seed")
        if not seed.isdecimal():
            continue  # put aside by hand
        try:
            run, rows = reader.read(path.parent)
            if reader.is_finished(run):
                check_whole(path.parent, run, rows)
                found.append(Record(path.parent, run, tuple(rows)))
        except reader.OtherFormat:
            raise
        except InputError as error:
            raise InputError(f"{error}; {AGAIN}") from None
    found.sort(key=lambda record: int(record.folder.name.removeprefix("seed")))
    for other in found[1:]:
        different = differences(*(without_seeds(record.run["settings"]) for record in (found[0], other)))
        if different:
            raise InputError(
                f"{found[0].folder} and {other.folder} are not the same experiment ({'; '.join(different)}); {AGAIN}"
            )
    return tuple(found)


def check_whole(folder: Path, run: Mapping[str, Any], rows: list[Row]) -> None:
    """Refuse the record of a finished run that lacks what the report needs."""
    if any(entry in run for entry in UNTRAINED):
        return
    if not rows:
        raise InputError(f"{folder} has no {EPOCHS}")
    reader.require(run, NEEDED, str(folder / RUN))
    metric = run["summary"]["metric"]
    for number, row in enumerate(rows, start=1):
        reader.require(row, (*NEEDED_IN_ROWS, metric), f"{folder / EPOCHS}, line {number}")
    for figures in (run["summary"], *rows):
        if not reader.is_number(figures.get(metric)):
            raise InputError(f"{folder}: {printable(metric)} is missing or not a number")
    for place, operation in enumerate(run["operations"]):
        reader.require(operation, ("epoch", "seconds", "layers"), f"{folder / RUN}: operations.{place}")
    if missing := reader.missing_epochs(run, rows):
        raise InputError(f"the record in {folder} is {without_rows(missing)}")


def without_seeds(settings: Any) -> Any:
    """The settings without those that differ between seeds."""
    if not isinstance(settings, Mapping):
        return settings
    return {key: without_seeds(value) for key, value in settings.items() if key not in ("seed", "name")}


def sample(records: tuple[Record, ...], asked: Quantity) -> Sample | None:
    values = []
    for record in records:
        with reader.asking(record.folder):
            values.append(asked.read(record))
    return verdicts.sample(values, [int(record.folder.name.removeprefix("seed")) for record in records])
