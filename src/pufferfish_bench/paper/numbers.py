"""The numbers that the paper prints. Needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import yaml_files


def paper_numbers() -> dict[str, Any]:
    """The content of numbers.yaml beside this file."""
    return yaml_files.read(Path(__file__).with_name("numbers.yaml"))


def rounded(macs: float) -> str:
    """MACs as the paper prints them: 0.40 G, 18.0 M."""
    return f"{macs / 1e9:.2f} G" if macs >= 1e8 else f"{macs / 1e6:.1f} M"


def as_printed(macs: float) -> float:
    """The value of the digits that `rounded` shows."""
    return float(round(macs, -7 if macs >= 1e8 else -5))


def digits(number: float) -> int:
    """The significant digits of a printed number: 3 of 3.35, 2 of 1.3e6. Zeros at its end do not count."""
    return len(Decimal(repr(number)).normalize().as_tuple().digits)


def same_digits(ours: float, printed: float) -> bool:
    """Whether a number equals a printed one in all digits of the latter."""
    places = digits(printed) - 1
    return f"{ours:.{places}e}" == f"{printed:.{places}e}"


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper, with its standard deviation if it has one, or the formula that the paper gives instead."""

    mean: float
    deviation: float | None = None
    formula: str | None = None

    @property
    def is_order(self) -> bool:
        return self.formula is not None and self.formula.startswith("O(")


def paper_number(numbers: Mapping[str, Any], path: str | None, sizes: Mapping[str, int]) -> PaperNumber | None:
    """The paper's number under a path of keys; a formula is evaluated at these sizes."""
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
    """The value of a formula of paper/numbers.yaml."""
    try:
        return float(eval(formula, {"__builtins__": {}}, dict(sizes)))
    except NameError as error:
        raise InputError(
            f"the paper's formula {formula} needs the size {error.name}; given: {', '.join(sizes) or 'none'}"
        ) from None
