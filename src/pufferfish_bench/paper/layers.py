"""Build one layer of each kind in the paper's Table 1, at any sizes, and count it. Uses no formula of the paper."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.models.transformer import Attention, FeedForward

NETS = ("vanilla", "factorised")


@dataclass(frozen=True)
class Layer:
    """A kind of layer; its sizes are named by the paper's letters."""

    build: Callable[..., nn.Module]
    example: Callable[..., Sequence[Tensor]]  # one image, one word, or a sequence of N words
    parts: Sequence[str]  # the modules that are factorised, with rank r
    modular: bool = True  # whether the paper's counter of MACs, which sees modules only, sees all of it


class OneLayer(nn.Module):
    """A model that consists of one layer."""

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
        modular=False,
    ),
    "ffn": Layer(
        lambda p, d, **_: FeedForward(width=p * d, inner=4 * p * d, dropout=0.0),
        lambda p, d, N, **_: [torch.zeros(1, N, p * d)],
        ["layer.inner", "layer.outer"],
    ),
}


def count(layer: str, net: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Weights (without biases, which are not factorised) and multiply-accumulates of a layer at these sizes, in both ways."""
    for what, word, known in (("layer", layer, LAYERS), ("net", net, NETS)):
        if word not in known:
            raise InputError(f"{what}: {word} is not known; allowed: {', '.join(known)}")
    kind = LAYERS[layer]
    try:
        with torch.device("meta"):
            model, example = OneLayer(kind.build(**sizes)), kind.example(**sizes)
        if net == "factorised":
            lowrank.restructure(model, dict.fromkeys(kind.parts, sizes["r"]))
    except (TypeError, KeyError) as error:
        raise InputError(f"the sizes of {net} {layer} are not valid: {error}") from None
    spent = {"macs": counting.macs(model, *example)[""]}
    if kind.modular:
        spent["macs_as_in_paper"] = counting.macs_as_in_paper(model, *example)
    weights = sum(weight.numel() for name, weight in model.named_parameters() if "bias" not in name)
    return {"parameters": weights, **spent}
