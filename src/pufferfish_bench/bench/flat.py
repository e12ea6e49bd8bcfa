"""The backward pass into the flat buffer, with an allreduce of one process, against a plain backward pass."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.bench import as_in_a_run, interleaved
from pufferfish_bench.bench.nets import cross_entropy
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.core import Reducer
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.reducers.allreduce import AllReduce
from pufferfish_bench.training.stopwatch import Stopwatch

QUICK = {"rounds": 3, "batch_size": 32}
OURS, PLAIN, ZEROING = "flat engine", "plain backward", "zeroing the buffer"


class Backward:
    """The forward pass, and the part of a step from its loss to its averaged gradients."""

    def __init__(self, model: nn.Module, reducer: Reducer, optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor]):
        self.reducer = reducer
        self.module = reducer.attach(model.train())
        self.optimizer = optimizer
        self.loss = loss

    def forward(self) -> None:
        self.result = self.loss(self.module)

    def backward(self) -> None:
        self.reducer.clear(self.optimizer)
        self.result.backward()
        self.reducer.reduce()


def measure(*, rounds: int = 7, batch_size: int = 128, width: float = 1.0) -> tuple[list[Row], dict[str, Any]]:
    """ResNet-18; `width` multiplies its width."""
    torch.manual_seed(1)
    nets = as_in_a_run.nets("model=resnet18", f"model.net.width={width}")
    images, labels = as_in_a_run.images(batch_size, 32, nets.settings["net"]["classes"])
    loss = partial(cross_entropy, images, labels)
    where = {"world": single_process(), "watch": Stopwatch(device=torch.device("cpu"), untimed_steps=0)}
    reducers = {OURS: AllReduce(measure_wait=False, **where), PLAIN: Reducer(**where)}
    passes = {}
    for name, reducer in reducers.items():
        model = copy.deepcopy(nets.vanilla)
        passes[name] = Backward(model, reducer, nets.optimizer(model), loss)
    buffer = torch.zeros(sum(parameter.numel() for parameter in nets.vanilla.parameters()))
    taken = interleaved.seconds(
        {name: each.backward for name, each in passes.items()} | {ZEROING: buffer.zero_},
        before={name: each.forward for name, each in passes.items()},
        rounds=rounds,
    )
    share = interleaved.ratio(taken[ZEROING], taken[PLAIN])
    note = (
        f"Backward pass of ResNet-18, batch {batch_size}, from its loss to the averaged gradients. Zeroing the buffer takes "
        f"{100 * share:.2f} % of it. Copying fresh gradients into the buffer instead was tried and gained nothing here."
    )
    return [compare("flat", *((name, taken[name]) for name in (OURS, PLAIN)), note=note)], {"seconds": taken}
