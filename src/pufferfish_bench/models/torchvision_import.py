"""Imports torchvision, even with a CPU build of torch, for which PyPI's torchvision cannot load its native operators.

On import, torchvision registers shape functions for two of these operators and fails if they do not exist.
Declaring the two (they are never called here) makes data sets, transforms and models work:
`from pufferfish_bench.models.torchvision_import import torchvision`.
"""

import importlib.util
from pathlib import Path

import torch

__all__ = ["torchvision"]


def native_operators_load() -> bool:
    """Whether torchvision's compiled library can be loaded with this torch."""
    package = Path(importlib.util.find_spec("torchvision").origin).parent
    try:
        for library in package.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return True


if not native_operators_load():
    declared = torch.library.Library("torchvision", "DEF")  # the declarations live as long as this object
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402
