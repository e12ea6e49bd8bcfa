"""The lottery ticket: train, prune the smallest weights, go back to the start, and again (Frankle and Carbin, 2019)."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench import counting, low_rank, pruning
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.errors import InputError

MASK = "mask"  # the buffer of a convolution that says which of its weights are trained


class LTH(Method):
    """Levels of whole trainings; each begins with the weights of the first, without the smallest of the level before.

    There are `levels` of them after the first, or as many as it takes to reach `sparsity` of the convolutions, or, if neither
    is given, the size of the Pufferfish net, which `layers` describes.
    """

    def __init__(
        self, *, prune_share: float, rewind_steps: int, levels: int | None, sparsity: float | None,
        layers: Mapping[str, Any] | None,
    ):  # fmt: skip
        if not 0 < prune_share < 1:
            raise InputError(f"method.prune_share={prune_share} must be above 0 and below 1")
        if levels is not None and sparsity is not None:
            raise InputError("method.levels and method.sparsity are two ways to say when to stop: give one of them")
        if levels is not None and levels < 1:
            raise InputError(f"method.levels={levels} must be at least 1")
        if sparsity is not None and not 0 < sparsity < 1:
            raise InputError(f"method.sparsity={sparsity} must be above 0 and below 1")
        if levels is None and sparsity is None and layers is None:
            raise InputError("the model has no low_rank, whose size method=lth prunes to: give method.levels or method.sparsity")
        if rewind_steps < 0:
            raise InputError(f"method.rewind_steps={rewind_steps} must not be negative")
        self.prune_share = prune_share
        self.rewind_steps = rewind_steps
        self.levels = levels
        self.sparsity = sparsity
        self.layers = layers
        self.start: dict[str, Tensor] | None = None  # what every level goes back to

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        first = Phase("level0", range(epochs), enter=Remember(self), restart=True)
        prune = PruneAndRewind(self)
        later = (
            Phase(f"level{level}", range(level * epochs, (level + 1) * epochs), enter=prune, restart=True)
            for level in range(1, self.levels_for(model) + 1)
        )
        return [first, *later]

    def levels_for(self, model: nn.Module) -> int:
        """How many levels after the first it takes."""
        if self.levels is not None:
            return self.levels
        prunable = sum(layer.weight.numel() for _, layer in convolutions(model))
        if self.sparsity is not None:
            allowed = (1 - self.sparsity) * prunable
        else:
            allowed = prunable - (counting.parameters(model) - self.size_of_pufferfish(model))
        if allowed < 1:
            raise InputError(
                f"no pruning of the {prunable:,} convolution weights makes the net as small as asked; give method.levels"
            )
        levels, left = 0, float(prunable)
        while left > allowed * (1 + 1e-9):
            if self.prune_share * left < 1:
                raise InputError(
                    f"method.prune_share={self.prune_share} of {left:,.0f} weights is none: the net never gets as small as asked"
                )
            levels, left = levels + 1, left * (1 - self.prune_share)
        return levels

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        if not dict(convolutions(model)):
            raise InputError("method=lth prunes convolutions; this model has none")

    def size_of_pufferfish(self, model: nn.Module) -> int:
        factored = copy.deepcopy(model)
        low_rank.restructure(factored, low_rank.choose(factored, **low_rank.arguments(self.layers)).ranks)
        return counting.parameters(factored)

    def after_backward(self, run: Run) -> None:
        if run.epoch == run.step == 0 and self.rewind_steps >= run.phase.epochs.stop * run.task.steps(0):
            raise InputError(f"method.rewind_steps={self.rewind_steps} lies beyond the first level, which has fewer steps")

    def after_step(self, run: Run) -> None:
        """What was pruned stays zero. At the step to go back to, if it is not the start, all is remembered."""
        with torch.no_grad():
            for layer, mask in masked(run.model):
                layer.weight.mul_(mask)
        if run.phase_index == 0 and run.epoch * run.task.steps(run.epoch) + run.step + 1 == self.rewind_steps:
            self.remember(run.model)

    def remember(self, model: nn.Module) -> None:
        self.start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def after_epoch(self, run: Run) -> dict[str, float]:
        pruned = sum(int((~mask).sum()) for _, mask in masked(run.model))
        return {"level": run.phase_index, "nonzero_parameters": run.parameters - pruned}

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        start = state["start"]
        if start is not None and not all(isinstance(tensor, Tensor) for tensor in start.values()):
            raise ValueError("start does not hold tensors")
        self.start = start


class Remember(Surgery):
    """Changes nothing: keeps the start, to which later levels go back."""

    def __init__(self, method: LTH):
        self.method = method

    def operate(self, run: Run) -> Operation:
        self.method.remember(run.model)
        return Operation({"layers": {}})

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        pass


class PruneAndRewind(Surgery):
    """Masks the smallest of the weights that were trained, of all convolutions together, and goes back to the start."""

    def __init__(self, method: LTH):
        self.method = method

    def operate(self, run: Run) -> Operation:
        model = run.model
        layers = dict(convolutions(model))
        weights = {name: layer.weight.detach() for name, layer in layers.items()}
        before = {name: getattr(layer, MASK, torch.ones_like(layer.weight, dtype=torch.bool)) for name, layer in layers.items()}
        after = pruning.without_smallest(weights, before, self.method.prune_share)
        model.load_state_dict(self.method.start, strict=False)  # it knows of no masks
        for name, layer in layers.items():
            layer.register_buffer(MASK, after[name])
        self.method.after_step(run)
        kept = {name: {"kept": int(mask.sum()), "of": mask.numel()} for name, mask in after.items()}
        pruned = sum(layer["of"] - layer["kept"] for layer in kept.values())
        return Operation({"layers": kept, "nonzero_parameters": counting.parameters(model) - pruned})

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        layers = dict(convolutions(model))
        for name in done["layers"]:
            if name not in layers:
                raise InputError(f"{name!r} names no convolution")
            layer = layers[name]
            layer.register_buffer(MASK, torch.ones_like(layer.weight, dtype=torch.bool))


def convolutions(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d]]:
    yield from ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))


def masked(model: nn.Module) -> Iterator[tuple[nn.Conv2d, Tensor]]:
    yield from ((layer, getattr(layer, MASK)) for _, layer in convolutions(model) if hasattr(layer, MASK))
