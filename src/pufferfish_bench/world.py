"""The processes that train together: rank, size and device. The only place that may import torch.distributed."""

import os
from dataclasses import dataclass

import torch

from pufferfish_bench.errors import InputError


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    def synchronise(self) -> None:
        """Return once the device has done all it was asked to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def join(device: str) -> World:
    """The world this process was started in, on `device`: cpu, cuda, or auto for CUDA where there is one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        raise InputError(f"WORLD_SIZE={size}: this version trains in one process; start it without torchrun")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={device} is not known; allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda, but PyTorch sees no CUDA device here; use device=cpu or device=auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return World(rank=0, size=1, device=torch.device(device))
