"""A DistributedDataParallel loop with SwitchToLowRank, in two ranks: each writes what it has to a file."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError

EPOCHS, SWITCH = 6, 2


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))


def train(folder: Path) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    images = torch.randn(64, 12)
    labels = images[:, :3].argmax(1)
    images, labels = images[rank::2], labels[rank::2]
    ddp = DistributedDataParallel(net())
    switch = lowrank.SwitchToLowRank(ddp.module, epoch=SWITCH, sample=[images[:1]], first=None, carry_momentum=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _epoch in range(EPOCHS):
        for batch in range(0, len(images), 8):
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(images[batch : batch + 8]), labels[batch : batch + 8])
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        if groups := switch(optimizer):
            ddp = DistributedDataParallel(ddp.module)
            optimizer = switch.carry(torch.optim.SGD(groups))
            carried = [optimizer.state[p]["momentum_buffer"].clone() for p in ddp.parameters()]
    found = {"losses": losses, "state": ddp.module.state_dict(), "carried": carried, "done": switch.done}
    torch.save(found, folder / f"rank{rank}.pt")


def diverge(folder: Path) -> None:
    """Rank 0 alone cannot factorise: both must fail with its message, and none may wait."""
    model = net()
    if dist.get_rank() == 0:
        model[2].weight.data.fill_(torch.nan)
    switch = lowrank.SwitchToLowRank(model, epoch=1, sample=[torch.zeros(1, 12)], first=None)
    try:
        switch(torch.optim.SGD(model.parameters(), lr=0.1))
    except InputError as error:
        (folder / f"failed{dist.get_rank()}").write_text(str(error))


def unequal(folder: Path) -> None:
    """Weights that differ between ranks: the factors of rank 0 count."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last), nn.LSTM(8, 8), nn.MultiheadAttention(8, 2))
    switch = lowrank.SwitchToLowRank(model, epoch=1, keep=[], first=None)
    switch(torch.optim.SGD(model.parameters(), lr=0.1))
    torch.save(model.state_dict(), folder / f"unequal{dist.get_rank()}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Path(sys.argv[1]))
    diverge(Path(sys.argv[1]))
    unequal(Path(sys.argv[1]))
    dist.destroy_process_group()
