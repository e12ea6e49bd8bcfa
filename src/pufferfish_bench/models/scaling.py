"""The width of a miniature."""

from pufferfish_bench.errors import InputError


def scaled(channels: int, width: float, name: str = "width") -> int:
    """The full net's channels times `width`, at least one; `name` is the setting to blame."""
    if not isinstance(width, int | float) or width <= 0:
        raise InputError(f"model.{name}={width} is not a number above 0")
    return max(1, int(channels * width))
