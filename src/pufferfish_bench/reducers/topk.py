"""Top-k: every rank sends the largest of its gradients with their places; what is not sent waits for the next step."""

from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import PositiveShare
from pufferfish_bench.reducers.flat import Gathered


class TopK(Gathered):
    """The mean of the ranks' largest gradients, a `share` of all; error feedback keeps the rest."""

    takes_scaled = False  # what it remembers would be of another scale, or infinite for ever

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
    """Into `out` the mean of the sparse vectors that the ranks sent (ranks, bytes): places, then values."""
    places, values = messages.chunk(2, dim=1)
    out.zero_()
    for place, value in zip(places, values, strict=True):
        out[place.contiguous().view(torch.int32).long()] += value.contiguous().view(torch.float32) / len(messages)
