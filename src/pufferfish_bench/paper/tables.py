"""Read the tables and figures of the paper from conf/table/: cells, their numbers, and the claims of the paper. Runs nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.config import yaml_files
from pufferfish_bench.config.own_configs import own_folders
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.paper import relations
from pufferfish_bench.paper.bandwidth import at_each_rate
from pufferfish_bench.paper.budget import GapSettings
from pufferfish_bench.paper.cells import BudgetRun, Cell, LabRun, LayerCount, ModelCount, TrainRun
from pufferfish_bench.paper.gates import Gates
from pufferfish_bench.paper.inspections import Architecture, Recipe
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.paper.relations import Relation
from pufferfish_bench.paper.specifications import lines

PROFILES = sorted((path.stem for path in Path(config_dir(), "profile").glob("*.yaml")), key=lambda name: (name != "paper", name))
OVER = ("scaling", "lab", "gaps")  # pictures of tables with `over`
PICTURES = ("cells", "breakdown", "size", "sweep", *OVER)


@dataclass(frozen=True)
class Sweep:
    """A setting with a different number in each cell."""

    label: str  # of the axis
    at: Mapping[str, int]  # cell -> number
    reference: str | None = None  # a cell without the setting, which the others are compared with


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper under one profile."""

    name: str
    profile: str
    title: str
    seeds: int  # as in the paper under its own profile
    cells: tuple[Cell, ...]
    relations: tuple[Relation, ...]
    note: str  # what a reader has to know
    # cells: numbers and learning curves | breakdown: also the parts of an epoch | size: also time and metric over parameters
    # | sweep: a number over a setting, and learning curves | scaling: seconds per epoch and speed-up over workers
    # | lab: the parts of an epoch for each network, times over bandwidth, and a forecast for other networks
    # | gaps: the difference between two nets over the training budget
    picture: str
    sweep: Sweep | None = None
    gates: Mapping[str, Gates] = field(default_factory=dict)
    gaps: GapSettings | None = None

    def cell(self, name: str) -> Cell:
        return next(cell for cell in self.cells if cell.name == name)

    def jobs(self, seeds: int, records: Path) -> list[Job]:
        """All runs of the table: counts first, then seed by seed, so that a table that is stopped has complete seeds."""
        folder = records / self.profile / self.name
        found = [job for cell in self.cells for job in cell.jobs(range(1, seeds + 1), folder)]
        return sorted(found, key=lambda job: job.seed if job.cell.has_seeds else 0)


def folder() -> Path:
    """The folder of the paper's tables."""
    return Path(config_dir()) / "table"


def files(*, own: bool) -> dict[str, Path]:
    """The files of the paper's tables, or of the user's own (PUFFERFISH_CONF), by name."""
    folders = [each / "table" for each in reversed(own_folders())] if own else [folder()]
    return {path.stem: path for each in folders for path in each.glob("*.yaml")}


def names() -> list[str]:
    """The names of the paper's tables and figures, in the order of their numbers, then those of the user's own."""
    return [*papers(), *sorted(files(own=True))]


def papers() -> list[str]:
    """The names of the paper's, in the order of their numbers, tables first; those without a number are the last."""
    known = files(own=False)
    return sorted(known, key=lambda name: (name.startswith("figure"), float("".join(filter(str.isdigit, name)) or "inf"), name))


def read(name: str, profile: str) -> PaperTable:
    """Read a table; refuse an unknown name or profile."""
    if name not in names():
        raise not_known(f"table or figure {name!r}", name, names())
    if profile not in PROFILES:
        raise not_known(f"profile={profile}", profile, PROFILES)
    path = (files(own=True) | files(own=False))[name]
    content: Any = yaml_files.read(path)
    try:
        return parse(name, profile, content)
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]} is missing") from None


def parse(name: str, profile: str, content: Mapping[str, Any]) -> PaperTable:
    cells = tuple(parse_cell(cell, own, content, profile) for cell, own in written_cells(content).items())
    written = content.get("relations", ())
    claims = tuple(relations.parse(one) for own in written for one in (at_each_rate(own, cells) if "over" in own else [own]))
    for relation in claims:
        for end, quantity in relation.ends:
            if not any(cell.name == end and quantity in cell.figures for cell in cells):
                raise InputError(f"{name}: {relation.claim!r} needs {quantity} of {end}, but no cell has that")
    gates = {gate: parse_gates(name, gate, own, cells) for gate, own in content.get("gates", {}).items()}
    for relation in claims:
        if relation.gates is not None and relation.gates not in gates:
            raise InputError(f"{name}: {relation.claim!r} names gates: {relation.gates}; there are {', '.join(gates) or 'none'}")
    picture = content.get("picture", "cells")
    if picture not in PICTURES:
        raise InputError(f"{name}: picture: {picture} is not known; allowed: {', '.join(PICTURES)}")
    without = [cell.name for cell in cells if cell.line is None]
    if picture in OVER and without:
        raise InputError(f"{name}: picture: {picture} needs `over:`, the settings that each of {', '.join(without)} is run with")
    return PaperTable(
        name=name,
        profile=profile,
        title=content["title"],
        seeds=of_profile(content["seeds"], profile),
        cells=cells,
        relations=claims,
        note=content.get("note", ""),
        picture=picture,
        sweep=parse_sweep(name, content, cells) if picture == "sweep" else None,
        gates=gates,
        gaps=GapSettings.parse(name, content.get("gaps", {}), [cell.line for cell in cells]) if picture == "gaps" else None,
    )


def parse_gates(name: str, gate: str, own: Mapping[str, Any], cells: Sequence[Cell]) -> Gates:
    gates = Gates.parse(gate, own, paper_numbers()["models"])
    for end in (gates.vanilla, gates.low_rank):
        if not any(cell.name == end for cell in cells):
            raise InputError(f"{name}: gates: {gate}: there is no cell {end}")
    return gates


def written_cells(content: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The cells of a table. With `over`, each cell is run with the settings of each entry there, as <cell>_<entry>."""
    if "over" not in content:
        return content["cells"]
    return {
        f"{cell}_{entry}": {**own, **further, "overrides": [*own["overrides"], *further.get("overrides", ())], "line": cell}
        for entry, further in content["over"].items()
        for cell, own in content["cells"].items()
    }


def parse_cell(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> Cell:
    """A cell of the class that its `kind` selects."""
    kind = of_profile(own.get("kind", table.get("kind", "train")), profile)
    if kind not in KINDS:
        raise InputError(f"{name}: kind: {kind} is not known; allowed: {', '.join(KINDS)}")
    return KINDS[kind](name, own, table, profile)


def train_run(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> TrainRun:
    """The settings of a cell come after those that the table has for all cells, those of the profile after both."""
    words = [*table.get("common", ()), *own["overrides"]]
    for place in (table, own):
        words += place.get("by_profile", {}).get(profile, ())
    return TrainRun(
        name=name,
        overrides=(*words, f"profile={table.get('profile', profile)}"),
        figures=table.get("figures", {}) | own.get("figures", {}),
        workers=of_profile(own.get("workers", table.get("workers", 1)), profile),
        line=own.get("line"),
    )


def lab_run(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> LabRun:
    return LabRun(**vars(train_run(name, own, table, profile)), cap=of_profile(own.get("cap", table.get("cap")), profile))


def budget_run(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> BudgetRun:
    if not own["budget"] > 0:
        raise InputError(f"{name}: budget: {own['budget']} must be above 0: a multiple of the recipe's epochs")
    return BudgetRun(**vars(train_run(name, own, table, profile)), budget=own["budget"])


def model_count(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> ModelCount:
    return ModelCount(name=name, overrides=tuple(own["overrides"]), net=own["net"], figures=own["figures"])


def layer_count(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> LayerCount:
    return LayerCount(name=name, layer=own["layer"], net=own["net"], sizes=own["sizes"], figures=own["figures"])


def architecture(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> Architecture:
    return Architecture(name=name, overrides=tuple(own["overrides"]), net=own["net"], lines=lines(table["lines"], name))


def recipe(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> Recipe:
    return Recipe(name=name, overrides=tuple(own["overrides"]), lines=lines(table["lines"], name))


KINDS = {  # the words of conf/table
    "train": train_run, "lab": lab_run, "budget": budget_run, "describe": model_count, "layer": layer_count,
    "architecture": architecture, "recipe": recipe,
}  # fmt: skip


def of_profile(value: Any, profile: str) -> Any:
    return value[profile] if isinstance(value, Mapping) else value


def parse_sweep(name: str, content: Mapping[str, Any], cells: Sequence[TrainRun]) -> Sweep:
    """The position of each cell on the axis: the number that its value of the swept setting is or ends with (features.conv9)."""
    own = content.get("sweep", {})
    if not {"setting", "label"} <= set(own):
        raise InputError(f"{name}: picture: sweep needs the setting that is swept: add sweep: {{setting: ..., label: ...}}")
    reference = own.get("reference")
    if reference is not None and not any(cell.name == reference for cell in cells):
        raise InputError(f"{name}: sweep: reference: there is no cell {reference}")
    at = {}
    for cell in cells:
        if cell.name == reference:
            continue
        values = [word.partition("=")[2] for word in cell.overrides if word.startswith(f"{own['setting']}=")]
        number = re.search(r"\d+$", values[-1]) if values else None
        if number is None:
            raise InputError(f"{name}: {cell.name} has no number on the axis: add {own['setting']}=... to its overrides")
        at[cell.name] = int(number[0])
    return Sweep(own["label"], at, reference)
