"""Signum (Bernstein et al., 2018): every rank sends the signs of its momentum, one bit each; the majority wins."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Decay
from pufferfish_bench.reducers import bits
from pufferfish_bench.reducers.flat import AllGatherReducer


class Signum(AllGatherReducer):
    """Each gradient becomes -1, 0 (a tie) or 1. The momentum is in this reducer, so the optimizer must have none."""

    supports_loss_scaling = False  # the momentum would mix scales, or stay infinite

    def __init__(self, *, momentum: Decay, **how: Any):
        super().__init__(**how)
        if not 0 <= momentum < 1:
            raise InputError(f"reducer.momentum={momentum} must be at least 0 and below 1")
        self.decay = momentum
        self.started = False

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups):
            raise InputError(
                f"reducer=signum has a momentum of its own, and so has {type(optimizer).__name__} here: use optimizer=sgd "
                "optimizer.momentum=0 schedule=steps"
            )
        if clip_norm is not None:
            raise InputError(f"clip_norm={clip_norm} has no effect on the signs of reducer=signum: set clip_norm=null")

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.momentum = torch.zeros_like(self.gradient)
        return module

    def encode(self) -> Tensor:
        self.momentum.lerp_(self.gradient, 1 - self.decay if self.started else 1.0)
        self.started = True
        return bits.pack(self.momentum < 0)

    def decode(self, messages: Tensor) -> None:
        vote(messages, out=self.gradient)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.momentum.copy_(state["momentum"])
        self.started = state["started"]


def vote(votes: Tensor, *, out: Tensor) -> None:
    """Write into `out` the sign that most ranks sent (ranks, bytes): a bit of 1 means negative, a tie gives 0.

    Votes are counted in packed form, so that only the result is unpacked and not the message of every rank.
    """
    ranks = len(votes)
    negative, half = bits.compare(bits.count(votes), ranks // 2)
    positive = ~negative if ranks % 2 else ~(negative | half)
    for (place, plus), (_, minus) in zip(bits.planes(positive, len(out)), bits.planes(negative, len(out)), strict=True):
        torch.sub(plus.view(torch.int8), minus.view(torch.int8), out=out[place])
