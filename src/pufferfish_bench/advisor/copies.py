"""Copies of a model, also of one that torch's deepcopy refuses."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy. Tensors that the model has computed from its parameters and kept are copied by value.

    nn.utils.spectral_norm and weight_norm keep such tensors, and compute them again in each forward pass.
    """
    kept = [tensor for module in model.modules() for tensor in tensors(vars(module))]
    memo = {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}
    return copy.deepcopy(model, memo)


def tensors(thing: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from (tensor for value in thing.values() for tensor in tensors(value))
    elif isinstance(thing, list | tuple):
        yield from (tensor for value in thing for tensor in tensors(value))
