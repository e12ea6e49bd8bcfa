"""Stochastic binary quantisation: each gradient is sent as the smallest or the largest of its rank, right on average."""

from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.reducers import bits
from pufferfish_bench.reducers.flat import Gathered

ENDS = 2 * 4  # bytes of the smallest and the largest, ahead of the bits


class StochasticBinary(Gathered):
    """A bit for each gradient and two numbers for each rank, in one message; unbiased, without error feedback."""

    def __init__(self, *, seed: int, **how: Any):
        super().__init__(**how)
        self.seed = seed

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.random = torch.Generator(self.world.device).manual_seed(self.seed * self.world.size + self.world.rank)
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
    """The ends of the range and, for each gradient, a bit that is 1 with the probability of its place between them."""
    ends = torch.stack(gradient.aminmax())
    low, high = ends
    drawn = torch.rand(gradient.shape, generator=random, device=gradient.device)
    return torch.cat([ends.view(torch.uint8), bits.pack(drawn * (high - low) < gradient - low)])


def decode(messages: Tensor, *, out: Tensor) -> None:
    """Into `out` the mean of what the ranks sent (ranks, bytes)."""
    low, high = messages[:, :ENDS].clone(memory_format=torch.contiguous_format).view(torch.float32).unbind(1)
    for place, answers in bits.planes(messages[:, ENDS:], len(out)):
        torch.mean(torch.where(answers.bool(), high[:, None], low[:, None]), 0, out=out[place])
