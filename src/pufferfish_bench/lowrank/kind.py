"""What has to be known about a kind of layer to factorise it. Everything else is the same for all kinds."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Kind:
    """A kind of layer with one or more weight matrices, and the low-rank layer that replaces it.

    Matrices have names. As a tensor, a matrix (out, in) may have further dimensions on its input side, such as a kernel.
    """

    types: tuple[type[nn.Module], ...]  # of the dense layers; a subclass may compute something else and is not factorised
    factored: type[nn.Module]
    carries_momentum = True  # whether the chain rule gives the momentum of the factors

    def matches(self, layer: nn.Module) -> bool:
        """Whether a layer is of this kind or of a subclass."""
        return isinstance(layer, self.types)

    def exact(self, layer: nn.Module) -> bool:
        return type(layer) in self.types

    def unfit(self, layer: Any) -> str | None:
        """Why options of this layer prevent its factorisation; None if they do not."""
        return None

    def shape(self, layer: Any) -> tuple[int, int]:
        """(out, in) of the matrix that limits the rank."""
        raise NotImplementedError

    def matrices(self, layer: Any) -> dict[str, Tensor]:
        """Views of the dense weights."""
        raise NotImplementedError

    def factors(self, factored: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """Views of u (rank, in) and v (out, rank) of every matrix: the dense matrix is v @ u."""
        raise NotImplementedError

    def new(self, layer: Any, rank: int, like: dict[str, Any]) -> nn.Module:
        """A low-rank layer with random weights; `like` has its device and number format."""
        raise NotImplementedError

    def empty_dense(self, factored: Any, like: dict[str, Any]) -> nn.Module:
        """The dense layer that a low-rank one replaces, with any weights."""
        raise NotImplementedError

    def copy_rest(self, layer: Any, factored: Any) -> None:
        """Copy biases and other tensors that are not factorised from a dense layer to a low-rank one."""
        raise NotImplementedError

    def restore_rest(self, factored: Any, layer: Any) -> None:
        """Copy them back."""
        raise NotImplementedError

    def origins(self, layer: Any) -> dict[str, str]:
        """For every parameter of the low-rank layer, the parameter of the dense one that it comes from."""
        raise NotImplementedError

    def vectors(self, layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> dict[str, int]:
        """How many vectors each matrix is multiplied with in a call of the layer."""
        raise NotImplementedError


def argument(number: int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An argument of a call, which was given by position or by name."""
    return args[number] if number < len(args) else kwargs[name]


def attribute(part: str, name: str) -> Any:
    """A property for a low-rank layer: an attribute of the dense layer that one of its parts has, for those that have it."""
    return property(lambda layer: getattr(getattr(layer, part), name))


def copy_bias(source: Tensor | None, target: Tensor | None) -> None:
    if isinstance(source, Tensor) and isinstance(target, Tensor):
        with torch.no_grad():
            target.copy_(source.view_as(target))
