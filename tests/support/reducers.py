"""Reducers as conf/reducer configures them."""

from collections.abc import Callable
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from pufferfish_bench.config.build import build
from pufferfish_bench.core import Reducer
from pufferfish_bench.distributed.world import World, single_process
from pufferfish_bench.training.stopwatch import Stopwatch
from tests.support.repository import REPOSITORY, configured

REDUCERS = configured("reducer")


def reducer_named(name: str, **changes: Any) -> Callable[..., Reducer]:
    """The constructor of a reducer with its settings from conf/, some of them changed."""
    config = OmegaConf.create({"seed": 3, "measure_wait": True, "reducer": {}})
    config.reducer = OmegaConf.merge(OmegaConf.load(REPOSITORY / "conf" / "reducer" / f"{name}.yaml"), changes)
    return build("reducer", config.reducer)


def attached(name: str, model: nn.Module, world: World | None = None, **changes: Any) -> Reducer:
    """A reducer that is attached to a model."""
    watch = Stopwatch(device=torch.device("cpu"), untimed_steps=0)
    reducer = reducer_named(name, **changes)(world=world or single_process(), watch=watch)
    reducer.attach(model)
    return reducer


def backward(reducer: Reducer, model: nn.Module, gradients: dict[str, Tensor]) -> None:
    """A backward pass whose gradients are exactly these, by parameter name; parameters that are not named get none."""
    reducer.clear(torch.optim.SGD(model.parameters(), lr=0.0))
    parameters = dict(model.named_parameters())
    torch.stack([(parameters[name] * gradient).sum() for name, gradient in gradients.items()]).sum().backward()
