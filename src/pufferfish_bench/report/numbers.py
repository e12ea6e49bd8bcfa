"""The numbers the paper prints, from their one home. Needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pufferfish_bench.errors import InputError


def paper_numbers() -> dict[str, Any]:
    """The numbers the paper prints: inside the installed package, or in results/paper/ of the repository."""
    inside = Path(__file__).parents[1] / "paper"
    directory = inside if inside.is_dir() else Path(__file__).parents[3] / "results" / "paper"
    return OmegaConf.to_container(OmegaConf.load(directory / "numbers.yaml"))


def rounded(macs: float) -> str:
    """As the paper prints it: 0.40 G, 18 M."""
    return f"{macs / 1e9:.2f} G" if macs >= 1e8 else f"{macs / 1e6:.1f} M"


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper, with its standard deviation where it gives one, or the formula that it gives instead."""

    mean: float
    deviation: float | None = None
    formula: str | None = None

    @property
    def is_order(self) -> bool:
        return self.formula is not None and self.formula.startswith("O(")


def paper_number(numbers: Mapping[str, Any], path: str | None, sizes: Mapping[str, int]) -> PaperNumber | None:
    """The paper's number under a path of keys; what a formula comes to at these sizes."""
    if path is None:
        return None
    found: Any = numbers
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            raise InputError(f"the paper's numbers have no {path}")
        found = found[key]
    if isinstance(found, str):
        return PaperNumber(value(found.removeprefix("O"), sizes), formula=found)
    return PaperNumber(*map(float, found)) if isinstance(found, Sequence) else PaperNumber(float(found))


def value(formula: str, sizes: Mapping[str, int]) -> float:
    """What a formula of results/paper/numbers.yaml comes to."""
    try:
        return float(eval(formula, {"__builtins__": {}}, dict(sizes)))
    except NameError as error:
        raise InputError(f"the paper's {formula} needs the size {error.name}: there are {', '.join(sizes) or 'none'}") from None
