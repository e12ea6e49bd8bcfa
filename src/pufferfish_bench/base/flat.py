"""Nested settings and figures by dotted keys."""

from collections.abc import Mapping
from typing import Any


def flat(nested: Any, key: str = "") -> dict[str, Any]:
    """Nested mappings by their dotted keys; a list is one value."""
    if not isinstance(nested, Mapping):
        return {key: nested}
    return {dotted: value for name, below in nested.items() for dotted, value in flat(below, f"{key}.{name}".lstrip(".")).items()}
