"""Which layers can be factored, and what a factored one is."""

from torch import Tensor, nn

from pufferfish_bench.recurrent import LSTM, LowRankLSTM

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution | LSTM


class LowRank(nn.Module):
    """A layer as the product of two thinner ones: v after u, with nothing in between."""

    def __init__(self, u: nn.Linear | Convolution, v: nn.Linear | Convolution):
        super().__init__()
        self.u = u
        self.v = v

    def forward(self, x: Tensor) -> Tensor:
        return self.v(self.u(x))

    @property
    def weight(self) -> Tensor:
        """The dense weight, computed at each read: for modules that read a layer's weight instead of calling the layer.

        nn.TransformerEncoderLayer does so in evaluation, and then computes with dense matrices. Gradients reach the factors.
        """
        out, inputs = self.v.weight.shape[0], self.u.weight.shape[1:]
        return (self.v.weight.flatten(1) @ self.u.weight.flatten(1)).view(out, *inputs)

    @property
    def bias(self) -> Tensor | None:
        return self.v.bias


FactoredLayer = LowRank | LowRankLSTM


def unrolled(layer: Layer) -> tuple[int, int]:
    """The sides (out, in) of a layer's weight as a matrix; a kernel belongs to the input side. Of an LSTM: of a gate's."""
    if isinstance(layer, LSTM):
        return layer.hidden_size, layer.input_size
    return layer.weight.shape[0], layer.weight[0].numel()


def weights_before_and_after(layer: Layer, rank: int) -> tuple[int, int]:
    """How many weights a layer has, and how many its factors would have at this rank; biases stay as they are."""
    out, inputs = unrolled(layer)
    if isinstance(layer, LSTM):  # four gates, each with a matrix for the input and one for the hidden state
        return 4 * out * (inputs + out), 4 * rank * (out + inputs + 2 * out)
    return out * inputs, rank * (out + inputs)
