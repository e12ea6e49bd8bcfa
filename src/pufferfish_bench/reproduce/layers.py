"""One layer of each kind in the paper's Table 1, built at any sizes and counted. Knows no formula."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import counting, low_rank
from pufferfish_bench.errors import InputError
from pufferfish_bench.models.transformer import Attention, FeedForward
from pufferfish_bench.recurrent import LSTM

NETS = ("vanilla", "factorised")


@dataclass(frozen=True)
class Layer:
    """A kind of layer; its sizes have the paper's letters."""

    build: Callable[..., nn.Module]
    example: Callable[..., Sequence[Tensor]]  # one image, one word, or a sequence of N words
    parts: Sequence[str]  # that are factored, at the rank r


class Alone(nn.Module):
    """A layer as a net of its own."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        if isinstance(self.layer, Attention):
            return self.layer(*inputs, self.layer.keys_and_values(*inputs))
        return self.layer(inputs[0], inputs[1:]) if len(inputs) > 1 else self.layer(*inputs)


LAYERS = {
    "fc": Layer(lambda m, n, **_: nn.Linear(n, m), lambda n, **_: [torch.zeros(1, n)], ["layer"]),
    "convolution": Layer(
        lambda c_in, c_out, k, **_: nn.Conv2d(c_in, c_out, k, padding=k // 2),
        lambda c_in, H, W, **_: [torch.zeros(1, c_in, H, W)],
        ["layer"],
    ),
    "lstm": Layer(
        lambda d, h, **_: LSTM(d, h),
        lambda d, h, **_: [torch.zeros(1, 1, d), torch.zeros(1, h), torch.zeros(1, h)],
        ["layer"],
    ),
    "attention": Layer(
        lambda p, d, **_: Attention(width=p * d, heads=p, dropout=0.0),
        lambda p, d, N, **_: [torch.zeros(1, N, p * d)],
        ["layer.query", "layer.key", "layer.value", "layer.out"],
    ),
    "ffn": Layer(
        lambda p, d, **_: FeedForward(width=p * d, inner=4 * p * d, dropout=0.0),
        lambda p, d, N, **_: [torch.zeros(1, N, p * d)],
        ["layer.inner", "layer.outer"],
    ),
}


def count(layer: str, net: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Weights (without biases, which are not factored) and multiply-accumulates of a layer at these sizes."""
    for what, word, known in (("layer", layer, LAYERS), ("net", net, NETS)):
        if word not in known:
            raise InputError(f"{what}: {word} is not known; allowed: {', '.join(known)}")
    kind = LAYERS[layer]
    try:
        with torch.device("meta"):
            model, example = Alone(kind.build(**sizes)), kind.example(**sizes)
        if net == "factorised":
            low_rank.restructure(model, dict.fromkeys(kind.parts, sizes["r"]))
    except (TypeError, KeyError) as error:
        raise InputError(f"the sizes of {net} {layer} do not do: {error}") from None
    weights = sum(weight.numel() for name, weight in model.named_parameters() if "bias" not in name)
    return {"parameters": weights, "macs": counting.macs(model, *example)[""]}
