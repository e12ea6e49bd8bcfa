"""The messages of every reducer between two real ranks, for a comparison with simulated ones: run under torchrun."""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from pufferfish_bench.distributed.world import World, join
from pufferfish_bench.lowrank.lstm import LowRankLSTM
from tests.support.reducers import attached, reducer_named

FLAT = ("allreduce", "fp16", "bf16", "powersgd", "signum", "topk", "sbq")


class Net(nn.Module):
    """Large enough for three buckets of DDP; a stack of matrices, vectors and a scalar for PowerSGD."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 2300), nn.ReLU(), nn.Linear(2300, 200))
        self.recurrent = LowRankLSTM(200, 24, 3)
        self.last = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(1.0))})  # parameters in the order of their use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = x.new_zeros(x.shape[0], 24)
        return self.last["scale"] * self.recurrent(self.layers(x)[None], (zero, zero))[0]


def messages(name: str, world: World) -> list[list]:
    """What a reducer of the flat engine sends in its second step."""
    torch.manual_seed(0)
    model = Net()
    reducer = attached(name, model, world)
    for _ in range(2):
        reducer.clear(torch.optim.SGD(model.parameters(), lr=0.0))
        model(torch.ones(2, 64)).sum().backward()
        with reducer.watch.step():
            sent = reducer.reduce()
    return [list(message) for message in sent]


def ddp_messages(world: World) -> list[list]:
    """What DDP sends in its third step: it rearranges its buckets after the first."""
    torch.manual_seed(0)
    model, watch = Net(), attached("allreduce", nn.Linear(1, 1)).watch
    reducer = reducer_named("ddp")(world=world, watch=watch)
    module = reducer.attach(model)
    for _ in range(3):
        with watch.step():
            loss = module(torch.ones(2, 64)).sum()
            with watch("backward"):
                loss.backward()
            sent = reducer.reduce()
    return [list(message) for message in sent]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    world = join("cpu", timeout=120, warn_after=60)
    found = {name: messages(name, world) for name in FLAT} | {"ddp": ddp_messages(world)}
    if world.rank == 0:
        out.write_text(json.dumps(found))
    world.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
