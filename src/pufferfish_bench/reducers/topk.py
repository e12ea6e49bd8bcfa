"""Top-k: every rank sends its largest gradients with their indices; the rest is added to the next step."""

from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import PositiveShare
from pufferfish_bench.reducers.flat import AllGatherReducer


class TopK(AllGatherReducer):
    """The mean of the largest gradients of each rank, a `share` of all; error feedback keeps the rest."""

    supports_loss_scaling = False  # error feedback would mix scales, or stay infinite

    def __init__(self, *, share: PositiveShare, **how: Any):
        super().__init__(**how)
        if not 0 < share <= 1:
            raise InputError(f"reducer.share={share} must be above 0 and at most 1")
        self.share = share

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.error = torch.zeros_like(self.gradient)
        self.count = max(1, int(self.share * len(self.gradient)))
        return module

    def encode(self) -> Tensor:
        self.gradient += self.error
        chosen = self.gradient.abs().topk(self.count, sorted=False).indices
        values = self.gradient[chosen]
        self.error.copy_(self.gradient)[chosen] = 0
        return torch.cat([chosen.int().view(torch.uint8), values.view(torch.uint8)])

    def decode(self, messages: Tensor) -> None:
        decode(messages, out=self.gradient)

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error.copy_(state["error"])


def decode(messages: Tensor, *, out: Tensor) -> None:
    """Write into `out` the mean of the sparse vectors that the ranks sent (ranks, bytes): indices, then values."""
    indices, values = messages.chunk(2, dim=1)
    out.zero_()
    for index, value in zip(indices, values, strict=True):
        out[index.contiguous().view(torch.int32).long()] += value.contiguous().view(torch.float32) / len(messages)
