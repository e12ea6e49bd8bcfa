"""The kinds of layers that can be factorised, and what follows from a kind for every layer."""

import torch
from torch import nn

from pufferfish_bench.lowrank.attention import AttentionKind, LowRankAttention
from pufferfish_bench.lowrank.kind import Kind
from pufferfish_bench.lowrank.layers import Conv1DKind, Convolution, ConvolutionKind, LinearKind, LowRank, LowRankConv1D
from pufferfish_bench.lowrank.lstm import LowRankLSTM
from pufferfish_bench.lowrank.lstm_stack import LayerKind, LowRankLSTMStack, StackKind

ALL: tuple[Kind, ...] = (LinearKind(), ConvolutionKind(), LayerKind(), StackKind(), AttentionKind(), Conv1DKind())
NAMES = (
    "nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.MultiheadAttention, transformers.pytorch_utils.Conv1D "
    "and pufferfish_bench.lowrank.lstm.LSTM"
)
# torch's layers among them; a Conv1D of transformers, which is not imported, can be factorised too
Layer = nn.Linear | Convolution | nn.LSTM | nn.MultiheadAttention
FactoredLayer = LowRank | LowRankLSTM | LowRankLSTMStack | LowRankAttention


def kind_of(layer: nn.Module) -> Kind | None:
    """The kind of a dense layer; None if there is none, as for low-rank layers."""
    return next((kind for kind in ALL if kind.matches(layer)), None)


def known_kind(layer: nn.Module) -> Kind:
    kind = kind_of(layer)
    if kind is None:
        raise TypeError(f"{type(layer).__name__} cannot be factorised")
    return kind


def kind_of_factored(layer: FactoredLayer) -> Kind:
    """The kind of layer that a low-rank one replaces."""
    if isinstance(layer, LowRank) and not isinstance(layer, LowRankConv1D):
        return next(kind for kind in ALL if kind.matches(layer.u))
    return next(kind for kind in ALL if isinstance(layer, kind.factored) and kind.factored is not LowRank)


def get_layer(model: nn.Module, name: str) -> nn.Module:
    """The layer `name` of a model, which must be one that can be factorised."""
    found = model.get_submodule(name)
    if kind_of(found) is None:
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be factorised")
    return found


def matrix_shape(layer: nn.Module) -> tuple[int, int]:
    """(out, in) of a layer's weight as a matrix, with the kernel on the input side; of several, the one that limits the rank."""
    return known_kind(layer).shape(layer)


def matrix_shapes(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """(out, in) of all matrices of a layer, by name."""
    with torch.no_grad():
        found = known_kind(layer).matrices(layer)
    return {name: (len(matrix), matrix.shape[1:].numel()) for name, matrix in found.items()}


def weights_before_and_after(layer: nn.Module, rank: int) -> tuple[int, int]:
    """Number of weights of a layer, and of its factors at this rank; biases are not counted."""
    shapes = matrix_shapes(layer).values()
    return sum(out * inputs for out, inputs in shapes), sum(rank * (out + inputs) for out, inputs in shapes)
