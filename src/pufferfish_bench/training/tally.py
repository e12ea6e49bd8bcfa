"""Sums over the steps of an epoch."""

from typing import Any

from torch import Tensor

from pufferfish_bench.core import Message
from pufferfish_bench.distributed.world import World


class Tally:
    """Loss and traffic of the current epoch. Losses are summed on the device, so that no step waits for it."""

    def __init__(self) -> None:
        self.loss_sum: Tensor | float = 0.0
        self.count: Tensor | int = 0  # targets so far: a small last batch weighs less
        self.finite_steps: Tensor | int = 0  # steps before the sum became infinite or NaN
        self.steps = 0
        self.bytes_sent = 0
        self.messages: list[Message] = []  # of the last step

    def add(self, loss: Tensor, count: Tensor | int, messages: list[Message]) -> None:
        self.loss_sum = self.loss_sum + loss.detach().double() * count
        self.count = self.count + count
        self.finite_steps = self.finite_steps + self.loss_sum.isfinite()
        self.steps += 1
        self.bytes_sent += sum(size for _, size in messages)
        self.messages = messages

    def mean_loss(self) -> float:
        return float(self.loss_sum) / float(self.count)

    def first_bad_step(self, world: World) -> int | None:
        """Index of the first step whose loss was not finite; None if all were."""
        finite = self.finite_steps if isinstance(self.finite_steps, int) else int(world.on_host(self.finite_steps))
        return finite if finite < self.steps else None

    def state_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "loss_sum": float(self.loss_sum),
            "count": int(self.count),
            "finite_steps": int(self.finite_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
