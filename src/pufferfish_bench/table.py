"""A table or figure of the paper as conf/table/ has it: its cells, their figures, what the paper claims. Runs nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.errors import InputError
from pufferfish_bench.settings import config_dir

PROFILES = ("paper", "cpu", "smoke")
COUNTED = ("describe", "layer")
KINDS = ("train", "lab", *COUNTED)
DIRECTIONS = ("higher", "lower")
PICTURES = ("cells", "breakdown", "size", "sweep", "scaling")


@dataclass(frozen=True)
class Cell:
    """One experiment of a table: how it is run, and which of its figures stand beside which of the paper's."""

    name: str
    kind: str  # train | lab: trained over capped links | describe: nothing is trained, the net is counted | layer: or one layer
    overrides: tuple[str, ...]  # of pufferfish-run, or of pufferfish-describe; a layer has none
    figures: Mapping[str, str | None]  # quantity -> where its number is in results/paper/numbers.yaml; None: the paper has none
    workers: int = 1
    cap: str | None = None  # of each host's link in the lab
    line: str | None = None  # of the scaling picture that it is a point of
    net: str | None = None  # that is counted
    layer: str | None = None  # that is counted, at these sizes
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def counted(self) -> bool:
        """Whether nothing is trained."""
        return self.kind in COUNTED

    @property
    def label(self) -> str:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        return self.name.replace("_", " ") + (f" ({sizes})" if sizes else "")


@dataclass(frozen=True)
class Relation:
    """What the paper claims of two cells: one has more, or less, of a quantity than the other."""

    claim: str
    quantity: str
    of: str
    direction: str
    than: str
    margin: float  # that the first is granted, of ours: "as accurate, to a point"
    margin_is_share: bool  # of what the second has
    ratio: str | None  # where the paper's (than / of) is, if not in its figures of the two
    difference: str | None  # where the paper's (of - than) is, likewise


@dataclass(frozen=True)
class Sweep:
    """A setting that takes another number in each cell."""

    label: str  # of its axis
    at: Mapping[str, int]  # cell -> number


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper under one profile."""

    name: str
    profile: str
    title: str
    seeds: int  # as many as the paper has
    cells: tuple[Cell, ...]
    relations: tuple[Relation, ...]
    note: str  # what must be known to read it
    picture: str  # cells: figures and curves | breakdown: and the parts of an epoch | size: and time and metric over parameters
    # | sweep: a figure over a setting, and curves | scaling: seconds an epoch and speed-up over workers
    sweep: Sweep | None = None

    def cell(self, name: str) -> Cell:
        return next(cell for cell in self.cells if cell.name == name)


def folder() -> Path:
    return Path(config_dir()) / "table"


def names() -> list[str]:
    """All tables and figures there are: tables first, each by its number."""
    known = [path.stem for path in folder().glob("*.yaml")]
    return sorted(known, key=lambda name: (name.startswith("figure"), int("".join(filter(str.isdigit, name))), name))


def read(name: str, profile: str) -> PaperTable:
    """A table as its file has it; a name or a profile that is not known is refused."""
    if name not in names():
        raise InputError(f"there is no {name!r}; there are {', '.join(names())}")
    if profile not in PROFILES:
        raise InputError(f"profile={profile} is not known; allowed: {', '.join(PROFILES)}")
    path = folder() / f"{name}.yaml"
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    try:
        return parse(name, profile, content)
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]} is missing") from None


def parse(name: str, profile: str, content: Mapping[str, Any]) -> PaperTable:
    cells = tuple(parse_cell(cell, own, content, profile) for cell, own in content["cells"].items())
    relations = tuple(parse_relation(own) for own in content.get("relations", ()))
    for relation in relations:
        for end in (relation.of, relation.than):
            asked = [cell for cell in cells if cell.name == end and relation.quantity in cell.figures]
            if not asked:
                raise InputError(f"{name}: {relation.claim!r} speaks of {relation.quantity} of {end}, which no cell has")
    picture = content.get("picture", "cells")
    if picture not in PICTURES:
        raise InputError(f"{name}: picture: {picture} is not known; allowed: {', '.join(PICTURES)}")
    sweep = parse_sweep(name, content, cells) if picture == "sweep" else None
    without = [cell.name for cell in cells if cell.line is None]
    if picture == "scaling" and without:
        raise InputError(f"{name}: picture: scaling draws lines, but {', '.join(without)} has no line: add line: <its method>")
    return PaperTable(
        name, profile, content["title"], content["seeds"], cells, relations, content.get("note", ""), picture, sweep
    )


def parse_cell(name: str, own: Mapping[str, Any], table: Mapping[str, Any], profile: str) -> Cell:
    """What a cell says, over what the table says for all its cells; of what differs by profile, this profile's."""
    kind = own.get("kind", table.get("kind", "train"))
    if kind not in KINDS:
        raise InputError(f"{name}: kind: {kind} is not known; allowed: {', '.join(KINDS)}")
    if kind == "layer":
        return Cell(name, kind, (), own["figures"], net=own["net"], layer=own["layer"], sizes=own["sizes"])
    if kind == "describe":  # counts are those of the paper's net, whatever is trained beside them
        return Cell(name, kind, tuple(own["overrides"]), own["figures"], net=own["net"])
    words = [*table.get("common", ()), *own["overrides"]]
    for place in (table, own):
        words += place.get("by_profile", {}).get(profile, ())
    return Cell(
        name=name,
        kind=kind,
        overrides=(*words, f"profile={profile}"),
        figures=table.get("figures", {}) | own.get("figures", {}),
        workers=of_profile(own.get("workers", table.get("workers", 1)), profile),
        cap=of_profile(own.get("cap", table.get("cap")), profile),
        line=own.get("line"),
    )


def of_profile(value: Any, profile: str) -> Any:
    return value[profile] if isinstance(value, Mapping) else value


def parse_sweep(name: str, content: Mapping[str, Any], cells: Sequence[Cell]) -> Sweep:
    """Where each cell stands on the axis: the number that its value of the swept setting is, or ends with (features.conv9)."""
    own = content.get("sweep", {})
    if not {"setting", "label"} <= set(own):
        raise InputError(f"{name}: picture: sweep needs to know what is swept: add sweep: {{setting: ..., label: ...}}")
    at = {}
    for cell in cells:
        values = [value for setting, _, value in (word.partition("=") for word in cell.overrides) if setting == own["setting"]]
        number = re.search(r"\d+$", values[-1]) if values else None
        if number is None:
            raise InputError(f"{name}: {cell.name} has no number to be drawn at: add {own['setting']}=... to its overrides")
        at[cell.name] = int(number[0])
    return Sweep(own["label"], at)


def parse_relation(own: Mapping[str, Any]) -> Relation:
    if own["is"] not in DIRECTIONS:
        raise InputError(f"{own['claim']!r}: is: {own['is']} is not known; allowed: {', '.join(DIRECTIONS)}")
    margin = str(own.get("margin", 0.0))
    share = margin.endswith("%")
    return Relation(
        claim=own["claim"],
        quantity=own["quantity"],
        of=own["of"],
        direction=own["is"],
        than=own["than"],
        margin=float(margin.removesuffix("%")) / (100 if share else 1),
        margin_is_share=share,
        ratio=own.get("ratio"),
        difference=own.get("difference"),
    )
