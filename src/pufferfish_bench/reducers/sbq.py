"""Stochastic binary quantisation: each gradient is rounded at random to the minimum or the maximum of its rank, unbiased."""

from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.reducers import bits
from pufferfish_bench.reducers.flat import AllGatherReducer

HEADER = 2 * 4  # bytes: minimum and maximum as float32, before the bits


class StochasticBinary(AllGatherReducer):
    """One bit per gradient and two numbers per rank, in one message; without error feedback."""

    def __init__(self, *, seed: int, **how: Any):
        super().__init__(**how)
        self.seed = seed

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.random = self.world.generator(self.seed * self.world.size + self.world.rank)
        return module

    def encode(self) -> Tensor:
        return encode(self.gradient, self.random)

    def decode(self, messages: Tensor) -> None:
        decode(messages, out=self.gradient)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.set_state(state["random"])


def encode(gradient: Tensor, random: torch.Generator) -> Tensor:
    """Minimum and maximum, and for each gradient a bit that is 1 with probability (gradient - min) / (max - min)."""
    limits = torch.stack(gradient.aminmax())
    low, high = limits
    drawn = torch.rand(gradient.shape, generator=random, device=gradient.device)
    return torch.cat([limits.view(torch.uint8), bits.pack(drawn * (high - low) < gradient - low)])


def decode(messages: Tensor, *, out: Tensor) -> None:
    """Write into `out` the mean of what the ranks sent (ranks, bytes)."""
    low, high = messages[:, :HEADER].clone(memory_format=torch.contiguous_format).view(torch.float32).unbind(1)
    for indices, plane in bits.planes(messages[:, HEADER:], len(out)):
        torch.mean(torch.where(plane.bool(), high[:, None], low[:, None]), 0, out=out[indices])
