"""Scaled-down layer widths."""

from pufferfish_bench.base.errors import InputError


def scaled(channels: int, width: float, name: str = "width") -> int:
    """`channels` times `width`, at least 1; `name` is the setting that an error message names."""
    if not isinstance(width, int | float) or width <= 0:
        raise InputError(f"model.net.{name}={width} must be a number above 0")
    return max(1, int(channels * width))
