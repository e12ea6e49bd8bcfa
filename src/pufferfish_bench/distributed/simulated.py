"""A world of several workers in one process: for measuring what a reducer computes, and what it would send."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pufferfish_bench.distributed.world import World


class SimulatedWorld(World):
    """Rank 0 of `size` workers that all have the same tensors. Nothing is sent: a collective returns what it would return."""

    def __init__(self, *, size: int, device: torch.device):
        super().__init__(rank=0, size=size, device=device)

    def allreduce(self, tensor: Tensor) -> None:
        tensor *= self.size

    def allgather(self, tensor: Tensor) -> Tensor:
        return tensor.new_empty(self.size, *tensor.shape).copy_(tensor[None])

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        pass

    def average(self, tensors: Iterable[Tensor]) -> None:
        pass

    def barrier(self) -> None:
        pass

    def broadcast_object(self, thing: Any) -> Any:
        return thing

    def gather(self, thing: Any) -> list[Any]:
        return [thing] * self.size

    def all_stop(self, requested: bool) -> bool:
        return requested

    def all_failed(self, run: int, seconds: float = 60.0) -> bool:
        return True
