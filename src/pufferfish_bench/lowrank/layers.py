"""The layers that can be factorised, and the low-rank layer that replaces them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from pufferfish_bench.lowrank.lstm import LSTM, LowRankLSTM

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution | LSTM


class LowRank(nn.Module):
    """A linear or convolution layer as the product of two thinner ones: u first, then v, with nothing in between."""

    def __init__(self, u: nn.Linear | Convolution, v: nn.Linear | Convolution):
        super().__init__()
        self.u = u
        self.v = v

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.v(self.u(x))
        return y

    @property
    def weight(self) -> Tensor:
        """The dense weight, computed at each access: for modules that read a layer's weight instead of calling the layer.

        nn.TransformerEncoderLayer does so in evaluation, and then computes with dense matrices. Gradients reach the factors.
        """
        out, inputs = self.v.weight.shape[0], self.u.weight.shape[1:]
        return (self.v.weight.flatten(1) @ self.u.weight.flatten(1)).view(out, *inputs)

    @property
    def bias(self) -> Tensor | None:
        return self.v.bias


FactoredLayer = LowRank | LowRankLSTM


def get_layer(model: nn.Module, name: str) -> Layer:
    """The layer `name` of a model, which must be one that can be factorised."""
    found = model.get_submodule(name)
    if not isinstance(found, Layer):
        raise TypeError(f"{name} is a {type(found).__name__}, which cannot be factorised")
    return found


def matrix_shape(layer: Layer) -> tuple[int, int]:
    """(out, in) of a layer's weight as a matrix; the kernel belongs to the input side. LSTM: of the matrix of one gate."""
    if isinstance(layer, LSTM):
        return layer.hidden_size, layer.input_size
    return layer.weight.shape[0], layer.weight[0].numel()


def weights_before_and_after(layer: Layer, rank: int) -> tuple[int, int]:
    """Number of weights of a layer, and of its factors at this rank; biases are not counted."""
    out, inputs = matrix_shape(layer)
    if isinstance(layer, LSTM):  # four gates, each with a matrix for the input and one for the hidden state
        return 4 * out * (inputs + out), 4 * rank * (out + inputs + 2 * out)
    return out * inputs, rank * (out + inputs)


def matrix_shapes(layer: Layer) -> dict[str, tuple[int, int]]:
    """(out, in) of all matrices of a layer, by name."""
    if isinstance(layer, LSTM):
        gates = range(4)
        return {f"ih{gate}": (layer.hidden_size, layer.input_size) for gate in gates} | {
            f"hh{gate}": (layer.hidden_size, layer.hidden_size) for gate in gates
        }
    return {"weight": matrix_shape(layer)}


def positions(layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> dict[str, int]:
    """How many vectors each matrix of a layer is multiplied with in a call."""
    if isinstance(layer, LSTM):
        return dict.fromkeys(matrix_shapes(layer), args[0].numel() // layer.input_size)
    return {"weight": output.numel() // matrix_shape(layer)[0]}
