"""Linear and convolution layers as the product of two thinner ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.lowrank.kind import Kind, attribute, copy_bias

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
# memory formats of images and volumes, by the number of dimensions of a weight
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class LowRank(nn.Module):
    """A linear or convolution layer as the product of two thinner ones: u first, then v, with nothing in between.

    It has the sizes and the settings of the dense layer as attributes of the same names, which the code of a model may read.
    """

    in_features, out_features = attribute("u", "in_features"), attribute("v", "out_features")
    in_channels, out_channels = attribute("u", "in_channels"), attribute("v", "out_channels")
    kernel_size, stride, padding = attribute("u", "kernel_size"), attribute("u", "stride"), attribute("u", "padding")
    dilation, groups, padding_mode = attribute("u", "dilation"), attribute("u", "groups"), attribute("u", "padding_mode")
    transposed, output_padding = attribute("u", "transposed"), attribute("u", "output_padding")

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

    def as_matrix(self, weight: Tensor) -> Tensor:
        """A tensor with the shape of the dense weight as a matrix (out, in)."""
        return weight.flatten(1)


class LowRankConv1D(LowRank):
    """The Conv1D of Hugging Face, a linear layer whose weight is (in, out), as the product of two linear layers."""

    nx, nf = attribute("u", "in_features"), attribute("v", "out_features")

    def __init__(self, u: nn.Linear, v: nn.Linear, dense: type[nn.Module]):
        super().__init__(u, v)
        self.dense = dense  # the class to merge to, which this package does not import

    @property
    def weight(self) -> Tensor:
        return super().weight.t()

    def as_matrix(self, weight: Tensor) -> Tensor:
        return weight.t()


class OneMatrix(Kind):
    """Layers with one weight and perhaps a bias, which become a LowRank."""

    factored: type[nn.Module] = LowRank

    def shape(self, layer: Any) -> tuple[int, int]:
        return layer.weight.shape[0], layer.weight[0].numel()

    def matrices(self, layer: Any) -> dict[str, Tensor]:
        return {"weight": layer.weight.detach()}

    def factors(self, factored: Any) -> dict[str, tuple[Tensor, Tensor]]:
        return {"weight": (factored.u.weight.detach(), factored.v.weight.detach())}

    def copy_rest(self, layer: Any, factored: Any) -> None:
        copy_bias(layer.bias, factored.v.bias)

    def restore_rest(self, factored: Any, layer: Any) -> None:
        copy_bias(factored.v.bias, layer.bias)

    def origins(self, layer: Any) -> dict[str, str]:
        return {"u.weight": "weight", "v.weight": "weight"} | ({} if layer.bias is None else {"v.bias": "bias"})

    def vectors(self, layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> dict[str, int]:
        return {"weight": output.numel() // self.shape(layer)[0]}


class LinearKind(OneMatrix):
    types = (nn.Linear,)

    def new(self, layer: nn.Linear, rank: int, like: dict[str, Any]) -> LowRank:
        return low_rank_linear(layer.in_features, layer.out_features, rank, bias=layer.bias is not None, **like)

    def empty_dense(self, factored: LowRank, like: dict[str, Any]) -> nn.Linear:
        return nn.Linear(factored.u.weight.shape[1], len(factored.v.weight), factored.bias is not None, **like)


class ConvolutionKind(OneMatrix):
    types = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def unfit(self, layer: Convolution) -> str | None:
        return None if layer.groups == 1 else f"grouped convolution (groups={layer.groups})"

    def new(self, layer: Convolution, rank: int, like: dict[str, Any]) -> LowRank:
        convolution: Any = type(layer)
        factored = LowRank(
            convolution(layer.in_channels, rank, layer.kernel_size, bias=False, **geometry(layer), **like),
            convolution(rank, layer.out_channels, 1, bias=layer.bias is not None, **like),
        )
        last = CHANNELS_LAST.get(layer.weight.ndim)
        if last and not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=last):
            factored.to(memory_format=last)  # type: ignore[call-overload]  # torch's stub lacks this argument
        return factored

    def empty_dense(self, factored: LowRank, like: dict[str, Any]) -> nn.Module:
        u: Any = factored.u
        out, bias = len(factored.v.weight), factored.bias is not None
        dense: nn.Module = type(u)(u.in_channels, out, u.kernel_size, bias=bias, **geometry(u), **like)
        return dense


class Conv1DKind(OneMatrix):
    """Hugging Face's Conv1D, recognised by its name: transformers is not imported."""

    types = ()
    factored = LowRankConv1D

    def matches(self, layer: nn.Module) -> bool:
        return any(map(is_conv1d, type(layer).__mro__))

    def exact(self, layer: nn.Module) -> bool:
        return is_conv1d(type(layer))

    def shape(self, layer: Any) -> tuple[int, int]:
        inputs, out = layer.weight.shape
        return out, inputs

    def matrices(self, layer: Any) -> dict[str, Tensor]:
        return {"weight": layer.weight.detach().t()}

    def new(self, layer: Any, rank: int, like: dict[str, Any]) -> LowRankConv1D:
        out, inputs = self.shape(layer)
        return LowRankConv1D(nn.Linear(inputs, rank, bias=False, **like), nn.Linear(rank, out, **like), type(layer))

    def empty_dense(self, factored: LowRankConv1D, like: dict[str, Any]) -> nn.Module:
        with torch.device(like["device"]):
            return factored.dense(len(factored.v.weight), factored.u.weight.shape[1]).to(like["dtype"])


def low_rank_linear(inputs: int, out: int, rank: int, *, bias: bool, **like: Any) -> LowRank:
    return LowRank(nn.Linear(inputs, rank, bias=False, **like), nn.Linear(rank, out, bias, **like))


def is_conv1d(kind: type) -> bool:
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def geometry(layer: Any) -> dict[str, Any]:
    """The settings of a convolution that decide where its kernel is applied."""
    return {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
