"""Models, optimizers and batches exactly as a run has them, built from conf/ by the same code."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.config import parts
from pufferfish_bench.config.build import composed
from pufferfish_bench.config.settings import plain
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.lowrank import counting
from pufferfish_bench.training import memory_format


@dataclass(frozen=True)
class Nets:
    """A vanilla net and its hybrid net, which has random factors: what a step costs does not depend on the weights."""

    settings: dict[str, Any]
    vanilla: nn.Module
    hybrid: nn.Module
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def named(self) -> dict[str, nn.Module]:
        return {"vanilla": self.vanilla, "hybrid": self.hybrid}

    def macs(self, *sample: Tensor) -> dict[str, int]:
        """MACs of one forward pass of each net."""
        return {name: counting.macs(model, *sample)[""] for name, model in self.named().items()}

    def macs_ratio(self, *sample: Tensor) -> float:
        """MACs of the vanilla net divided by those of the hybrid net: the largest gain to expect."""
        macs = self.macs(*sample)
        return macs["vanilla"] / macs["hybrid"]


def nets(*overrides: str) -> Nets:
    """The nets of a run with these overrides; the ranks are those in conf/model."""
    config = composed(overrides)
    built = parts.build_parts(config, single_process())
    hybrid = copy.deepcopy(built.model)
    settings = plain(config.model)
    lowrank.restructure(hybrid, lowrank.choose(hybrid, **settings["low_rank"]).ranks)
    memory_format.prepare(hybrid, torch.device("cpu"), config.channels_last)
    return Nets(settings, built.model, hybrid, built.optimizer)


def images(count: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """A batch of normalised images with labels, in the memory format in which a run's batches arrive."""
    pixels = torch.randn(count, 3, size, size).contiguous(memory_format=torch.channels_last)
    return pixels, torch.randint(classes, (count,))


def stepper(model: nn.Module, optimizer: Callable[[nn.Module], torch.optim.Optimizer], loss: Callable) -> Callable[[], None]:
    """One training step; `loss` takes the model. The learning rate is 0, so that the weights stay as they are."""
    chosen = optimizer(model.train())

    def step() -> None:
        chosen.zero_grad()
        loss(model).backward()
        chosen.step()

    return step
