"""The numbers the paper prints, from their one home. Needs no torch."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def paper_numbers() -> dict[str, Any]:
    """The numbers the paper prints: inside the installed package, or in results/paper/ of the repository."""
    inside = Path(__file__).parents[1] / "paper"
    directory = inside if inside.is_dir() else Path(__file__).parents[3] / "results" / "paper"
    return OmegaConf.to_container(OmegaConf.load(directory / "numbers.yaml"))


def rounded(macs: float) -> str:
    """As the paper prints it: 0.40 G, 18 M."""
    return f"{macs / 1e9:.2f} G" if macs >= 1e8 else f"{macs / 1e6:.1f} M"
