"""What became of a table of the paper: the records of its cells, read and judged. Writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, RUN, Row, read_json, read_rows
from pufferfish_bench.report import verdicts
from pufferfish_bench.report.quantities import Quantity, quantity
from pufferfish_bench.report.verdicts import Judgement, Sample
from pufferfish_bench.table import Cell, PaperTable, Relation, paper_number


@dataclass(frozen=True)
class Record:
    """A finished run of a cell: its two files."""

    seed: int
    folder: Path
    run: Mapping[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Figure:
    """One number of a cell, the paper's and ours."""

    cell: Cell
    name: str
    quantity: Quantity
    paper: tuple[float, float | None] | None
    ours: Sample | None
    verdict: str

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, where the two are of a kind."""
        comparable = self.ours and self.paper and self.verdict not in verdicts.INCOMPARABLE
        return self.ours.mean - self.paper[0] if comparable else None


@dataclass(frozen=True)
class Claim:
    """One relation of the paper, with its own factor or difference if it prints one, and what our runs say to it."""

    relation: Relation
    quantity: Quantity
    paper: float | None
    judgement: Judgement

    @property
    def ours(self) -> float | None:
        """Of times the factor, how many times as fast; of all else the difference."""
        return self.judgement.ratio if self.quantity.is_time else self.judgement.difference


@dataclass(frozen=True)
class Outcome:
    """A table of the paper with all that was measured for it."""

    table: PaperTable
    records: Mapping[str, tuple[Record, ...]]  # by cell, in the order of the seeds
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]

    @property
    def provenance(self) -> list[str]:
        """Commits, machines and days of all records."""
        runs = [record.run for records in self.records.values() for record in records]
        if not runs:
            return []
        commits = {(run.get("commit") or "unknown")[:12] + " with changes" * bool(run.get("dirty")) for run in runs}
        machines = {device(run) for run in runs if "hardware" in run}
        days = sorted(run["finished"][:10] for run in runs)
        return [
            f"profile {self.table.profile}",
            f"commit {', '.join(sorted(commits))}",
            *([f"on {'; '.join(sorted(machines))}"] if machines else []),
            f"finished {days[0]}" + (f" to {days[-1]}" if days[0] != days[-1] else ""),
        ]


def device(run: Mapping[str, Any]) -> str:
    hardware = run.get("hardware", {})
    workers = run.get("world_size", 1)
    threads = f", {hardware['threads']} threads" if "threads" in hardware else ""
    return f"{hardware.get('device', 'unknown')}{threads}" + f", {workers} workers" * (workers > 1)


def read(table: PaperTable, records: Path, numbers: Mapping[str, Any]) -> Outcome:
    """The outcome of a table from the records below `records`/<profile>/<table>/<cell>/seed<n>/."""
    found = {cell.name: read_cell(records / table.profile / table.name / cell.name) for cell in table.cells}
    samples = {(cell.name, name): sample(found[cell.name], quantity(name)) for cell in table.cells for name in cell.figures}
    figures = []
    for cell in table.cells:
        profile = "paper" if cell.kind == "describe" else table.profile
        machine = "; ".join(sorted({device(record.run) for record in found[cell.name]}))
        for name, path in cell.figures.items():
            ours, paper = samples[cell.name, name], paper_number(numbers, path)
            verdict = verdicts.of_figure(quantity(name), ours, paper, profile=profile, device=machine)
            figures.append(Figure(cell, name, quantity(name), paper, ours, verdict))
    claims = []
    for relation in table.relations:
        of, than = (samples[end, relation.quantity] for end in (relation.of, relation.than))
        paper = paper_number(numbers, relation.ratio or relation.difference)
        judgement = verdicts.of_relation(of, relation.direction, than)
        claims.append(Claim(relation, quantity(relation.quantity), paper and paper[0], judgement))
    return Outcome(table, found, tuple(figures), tuple(claims))


def read_cell(folder: Path) -> tuple[Record, ...]:
    """The finished runs of a cell, by seed."""
    found = []
    for path in folder.glob(f"seed*/{RUN}"):
        try:
            run, rows = read_json(path), read_rows(path.with_name(EPOCHS))
        except ValueError as error:
            raise InputError(f"{path} cannot be read ({error}); remove its folder, and the same command makes it anew") from None
        if "finished" in run:
            found.append(Record(int(path.parent.name.removeprefix("seed")), path.parent, run, tuple(rows)))
    return tuple(sorted(found, key=lambda record: record.seed))


def sample(records: tuple[Record, ...], asked: Quantity) -> Sample | None:
    return verdicts.sample([asked.read(record.run, record.rows) for record in records])
