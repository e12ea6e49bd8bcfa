"""Signum: every rank sends the signs of its momentum, a bit each; the majority decides (Bernstein et al., 2018)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Decay
from pufferfish_bench.reducers import bits
from pufferfish_bench.reducers.flat import Gathered


class Signum(Gathered):
    """Leaves -1, 0 (a tie) or 1 for each gradient. The momentum is local, so the optimizer must have none."""

    takes_scaled = False  # what it remembers would be of another scale, or infinite for ever

    def __init__(self, *, momentum: Decay, **how: Any):
        super().__init__(**how)
        if not 0 <= momentum < 1:
            raise InputError(f"reducer.momentum={momentum} must be at least 0 and below 1")
        self.decay = momentum
        self.begun = False

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        if any(group.get("momentum") or "betas" in group for group in optimizer.param_groups):
            raise InputError(
                f"reducer=signum has a momentum of its own, and so has {type(optimizer).__name__} here: use optimizer=sgd "
                "optimizer.momentum=0 schedule=steps"
            )
        if clip_norm is not None:
            raise InputError(f"clip_norm={clip_norm} would make nothing of signs, which are all as long: set clip_norm=null")

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.momentum = torch.zeros_like(self.gradient)
        return module

    def encode(self) -> Tensor:
        self.momentum.lerp_(self.gradient, 1 - self.decay if self.begun else 1.0)
        self.begun = True
        return bits.pack(self.momentum < 0)

    def decode(self, messages: Tensor) -> None:
        vote(messages, out=self.gradient)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "begun": self.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.momentum.copy_(state["momentum"])
        self.begun = state["begun"]


def vote(votes: Tensor, *, out: Tensor) -> None:
    """Into `out` the sign that most ranks sent (ranks, bytes): a bit means negative, a tie is 0."""
    ranks = len(votes)
    for place, negative in bits.planes(votes, len(out)):
        out[place] = (ranks - 2 * negative.sum(0, dtype=torch.int32)).sign_()
