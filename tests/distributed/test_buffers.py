"""Before evaluation, ranks average what training measured, and nothing else changes a bit."""

import pytest
import torch
from torch import Tensor, nn

from pufferfish_bench.core import Reducer
from pufferfish_bench.distributed.world import World
from pufferfish_bench.training.stopwatch import Stopwatch

RANKS = 7  # seven times a number divided by seven is not always that number again

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.plain = nn.BatchNorm2d(3, track_running_stats=False)
        self.register_buffer("positions", torch.rand(1000, generator=torch.Generator().manual_seed(0)))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1), persistent=False)


class AmongEqualRanks(World):
    """Rank 0 of several with the same buffers; the running means of the others are larger by their rank."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=RANKS, device=CPU)
        self.sent: list[int] = []
        self.copied: list[Tensor] = []

    def allreduce(self, tensor: Tensor) -> None:
        own = tensor.clone()
        for rank in range(1, RANKS):
            tensor += own + rank
        self.sent.append(tensor.numel())

    def broadcast(self, tensors: object, source: int = 0) -> None:
        assert source == 0
        self.copied += tensors


def test_running_statistics_are_averaged_and_constants_keep_their_bits():
    model, world = Net(), AmongEqualRanks()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    Reducer(world=world, watch=Stopwatch(device=CPU, untimed_steps=0)).sync_buffers(model)
    after = dict(model.named_buffers())
    mean = sum(range(RANKS)) / RANKS
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(after[name], before[name] + mean)
    for name in set(before) - {"norm.running_mean", "norm.running_var"}:
        assert torch.equal(after[name], before[name]), name
    assert world.sent == [6]  # numbers in the only message
    assert {id(tensor) for tensor in world.copied} == {id(model.positions), id(model.mask)}


def test_an_average_would_have_changed_constants():
    positions, world = Net().positions, AmongEqualRanks()
    summed = sum(positions for _ in range(world.size))
    assert not torch.equal(summed / world.size, positions)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_copies_to_cuda_are_pinned(device: str):
    """Pinned memory needs a CUDA device: without one, asking for it fails."""
    copied = World(rank=0, size=1, device=torch.device(device)).on_device(torch.ones(3))
    assert copied.device.type == device
