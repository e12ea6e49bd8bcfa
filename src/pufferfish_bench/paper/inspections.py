"""Cells of tables that describe a model or a recipe: built as in the paper's profile, and compared line by line."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pufferfish_bench.config import build
from pufferfish_bench.paper import specifications, verdicts
from pufferfish_bench.paper.cells import Untrained, identified
from pufferfish_bench.paper.numbers import PaperNumber
from pufferfish_bench.paper.quantities import Quantity
from pufferfish_bench.paper.specifications import Comparison, Line
from pufferfish_bench.paper.verdicts import Sample
from pufferfish_bench.records.record import INSPECTED, Record


@dataclass(frozen=True, kw_only=True)
class Inspection(Untrained):
    """A model or recipe, and the paper's lines about it."""

    overrides: tuple[str, ...]
    lines: tuple[Line, ...]
    figures: Mapping[str, str | None] = field(default_factory=dict)

    @abstractmethod
    def inspect(self) -> dict[str, Any]:
        """Our values by name."""

    def results(self) -> dict[str, Any]:
        return {INSPECTED: self.inspect()}

    def comparisons(self, records: Sequence[Record]) -> list[Comparison]:
        inspected = records[0].run[INSPECTED] if records else None
        return [specifications.compare(self.name, line, inspected) for line in self.lines]

    def verdict(
        self, quantity: Quantity, ours: Sample | None, paper: PaperNumber | None, *, profile: str, machines: Collection[str]
    ) -> str:
        return verdicts.NO_NUMBER  # it has lines, and no figures


@dataclass(frozen=True, kw_only=True)
class Architecture(Inspection):
    """The layers of a net: their shapes in the paper's order (inputs first), strides, ranks and so on."""

    net: str

    def settings(self) -> dict[str, Any]:
        return {"overrides": list(self.overrides), "net": self.net, "inspects": "layers"}

    def inspect(self) -> dict[str, Any]:
        from pufferfish_bench.paper import architecture  # imports torch

        with build.config_errors():
            described = build.described(self.overrides)
            return architecture.inspect(described["build"], described["sample"], described["hybrid"], self.net)


@dataclass(frozen=True, kw_only=True)
class Recipe(Inspection):
    """The settings of a training under the paper's profile, by their names in conf/."""

    def settings(self) -> dict[str, Any]:
        return {"overrides": list(self.overrides), "inspects": "settings"}

    def inspect(self) -> dict[str, Any]:
        ((_, settings),) = identified((*self.overrides, "profile=paper"), (1,))
        sample = build.described(self.overrides)["sample"]()[0]
        images = {"input": [*sample.shape[2:], sample.shape[1]]} if sample.dim() == 4 else {}
        return dict(flat(settings)) | images


def flat(settings: Any, name: str = "") -> list[tuple[str, Any]]:
    """Nested settings as (dotted name, value); of a constructor, the last word of its name."""
    if isinstance(settings, Mapping):
        return [pair for key, inner in settings.items() for pair in flat(inner, f"{name}.{key}".lstrip("."))]
    return [(name, settings.rpartition(".")[2] if name.endswith("_target_") else settings)]
