"""The lottery ticket (Frankle and Carbin, 2019): train, prune the smallest weights, rewind the others, and repeat."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench import lowrank, pruning
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.lowrank import counting

MASK = "mask"  # the buffer of a convolution that marks the weights that are not pruned


class LTH(Method):
    """Several complete trainings, called levels. Each level prunes the smallest weights and rewinds the others.

    After the first level there are `levels` more, or as many as it takes to reach `sparsity` in the convolutions. If neither is
    given, pruning continues until the network is as small as the Pufferfish network that `layers` describes.
    """

    def __init__(
        self, *, prune_share: float, rewind_steps: int, levels: int | None, sparsity: float | None,
        layers: Mapping[str, Any] | None,
    ):  # fmt: skip
        if not 0 < prune_share < 1:
            raise InputError(f"method.prune_share={prune_share} must be above 0 and below 1")
        if levels is not None and sparsity is not None:
            raise InputError("method.levels and method.sparsity both say when to stop: give one of them")
        if levels is not None and levels < 1:
            raise InputError(f"method.levels={levels} must be at least 1")
        if sparsity is not None and not 0 < sparsity < 1:
            raise InputError(f"method.sparsity={sparsity} must be above 0 and below 1")
        if levels is None and sparsity is None and layers is None:
            raise InputError(
                "the model has no low_rank, whose size method=lth would prune to: give method.levels or method.sparsity"
            )
        if rewind_steps < 0:
            raise InputError(f"method.rewind_steps={rewind_steps} must be at least 0")
        self.prune_share = prune_share
        self.rewind_steps = rewind_steps
        self.levels = levels
        self.sparsity = sparsity
        self.layers = layers
        self.start: dict[str, Tensor] | None = None  # the tensors that every level rewinds to

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        first = Phase("level0", range(epochs), surgery=KeepStart(self), restart=True)
        prune = PruneAndRewind(self)
        later = (
            Phase(f"level{level}", range(level * epochs, (level + 1) * epochs), surgery=prune, restart=True)
            for level in range(1, self.levels_for(model) + 1)
        )
        return [first, *later]

    def levels_for(self, model: nn.Module) -> int:
        """Number of levels after the first."""
        if self.levels is not None:
            return self.levels
        prunable = sum(layer.weight.numel() for _, layer in convolutions(model))
        if not prunable:
            return 1  # `check` refuses such a model
        if self.sparsity is not None:
            allowed = (1 - self.sparsity) * prunable
        else:
            allowed = prunable - (counting.parameters(model) - self.size_of_pufferfish(model))
        if allowed < 1:
            raise InputError(
                f"the network cannot become as small as asked by pruning its {prunable:,} convolution weights; give method.levels"
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
            raise InputError("method=lth prunes convolutions, but this model has none")

    def size_of_pufferfish(self, model: nn.Module) -> int:
        factored = copy.deepcopy(model)
        lowrank.restructure(factored, lowrank.choose(factored, **lowrank.arguments(self.layers)).ranks)
        return counting.parameters(factored)

    def phase_started(self, run: Run) -> None:
        if run.phase_index == 0:
            steps = sum(run.task.steps(epoch) for epoch in run.phase.epochs)
            if self.rewind_steps >= steps:
                raise InputError(f"method.rewind_steps={self.rewind_steps} must be below the {steps} steps of the first level")

    def after_step(self, run: Run) -> None:
        """Keep pruned weights at zero. At step `rewind_steps` of the first level, keep the tensors to rewind to."""
        apply_masks(run.model)
        if run.phase_index == 0 and run.epoch * run.task.steps(run.epoch) + run.step + 1 == self.rewind_steps:
            self.keep_start(run.model)

    def keep_start(self, model: nn.Module) -> None:
        self.start = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def after_epoch(self, run: Run) -> dict[str, float]:
        pruned = sum(int((~mask).sum()) for _, mask in masked(run.model))
        return {"level": run.phase_index, "nonzero_parameters": run.parameters - pruned}

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        start = state["start"]
        if start is not None and not all(isinstance(tensor, Tensor) for tensor in start.values()):
            raise ValueError("start must contain tensors only")
        self.start = start


class KeepStart(Surgery):
    """Changes nothing; keeps the initial weights, to which later levels rewind."""

    def __init__(self, method: LTH):
        self.method = method

    def operate(self, run: Run) -> Operation:
        self.method.keep_start(run.model)
        return Operation({"layers": {}})

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        pass


class PruneAndRewind(Surgery):
    """Masks the smallest remaining weights, of all convolutions together, and rewinds the others."""

    def __init__(self, method: LTH):
        self.method = method

    def operate(self, run: Run) -> Operation:
        model, start = run.model, self.method.start
        if start is None:
            raise RuntimeError("no weights to rewind to: the first level did not keep them")
        layers = dict(convolutions(model))
        weights = {name: layer.weight.detach() for name, layer in layers.items()}
        before = {name: getattr(layer, MASK, torch.ones_like(layer.weight, dtype=torch.bool)) for name, layer in layers.items()}
        after = pruning.prune_smallest(weights, before, self.method.prune_share)
        model.load_state_dict(start, strict=False)  # the masks are not in it
        for name, layer in layers.items():
            layer.register_buffer(MASK, after[name])
        apply_masks(model)
        kept = {name: {"kept": int(mask.sum()), "of": mask.numel()} for name, mask in after.items()}
        pruned = sum(layer["of"] - layer["kept"] for layer in kept.values())
        return Operation({"layers": kept, "nonzero_parameters": counting.parameters(model) - pruned})

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        layers = dict(convolutions(model))
        for name in details["layers"]:
            if name not in layers:
                raise InputError(f"the model has no convolution {name!r}")
            layer = layers[name]
            layer.register_buffer(MASK, torch.ones_like(layer.weight, dtype=torch.bool))


def convolutions(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d]]:
    yield from ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))


def masked(model: nn.Module) -> Iterator[tuple[nn.Conv2d, Tensor]]:
    yield from ((layer, getattr(layer, MASK)) for _, layer in convolutions(model) if hasattr(layer, MASK))


def apply_masks(model: nn.Module) -> None:
    """Set pruned weights to zero."""
    with torch.no_grad():
        for layer, mask in masked(model):
            layer.weight.mul_(mask)
