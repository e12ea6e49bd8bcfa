"""What to prune: masks of channels by their BatchNorm scales, masks of weights by their size; pure functions of tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Masks = dict[str, Tensor]


def scales(model: nn.Module) -> dict[str, Tensor]:
    """The absolute scale of every channel, by the name of its BatchNorm."""
    return {
        name: norm.weight.detach().abs() for name, norm in model.named_modules() if isinstance(norm, nn.BatchNorm2d)
    }  # fmt: skip


def channel_masks(scales: Mapping[str, Tensor], ratio: float) -> Masks:
    """Of all channels together, those whose scale is strictly above the one at place `ratio` in their order."""
    ordered = torch.cat(list(scales.values())).sort().values
    threshold = ordered[int(ratio * len(ordered))]
    return {name: scale > threshold for name, scale in scales.items()}


def at_least_one(masks: Masks, scales: Mapping[str, Tensor]) -> Masks:
    """The same masks; where a layer would lose all its channels, its largest stays."""
    left = {}
    for name, mask in masks.items():
        left[name] = mask.clone()
        if not mask.any():
            left[name][scales[name].argmax()] = True
    return left


def distance(one: Masks, other: Masks) -> float:
    """The share of entries in which two masks differ."""
    differing = sum(int((one[name] != other[name]).sum()) for name in one)
    return differing / sum(mask.numel() for mask in one.values())


class Queue:
    """The newest masks, and how far the last is from the others."""

    def __init__(self, *, length: int):
        self.length = length
        self.masks: list[Masks] = []

    @property
    def full(self) -> bool:
        return len(self.masks) == self.length

    @property
    def largest_distance(self) -> float | None:
        """From the newest mask to any of the others; None while there are no others."""
        *others, newest = self.masks or [{}]
        return max((distance(newest, other) for other in others), default=None)

    def push(self, masks: Masks) -> None:
        self.masks = [*self.masks, {name: mask.cpu() for name, mask in masks.items()}][-self.length :]

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        masks = state["masks"]
        if len(masks) > self.length or not all(isinstance(mask, Tensor) for entry in masks for mask in entry.values()):
            raise ValueError(f"not {self.length} masks at most")
        self.masks = masks


def without_smallest(weights: Mapping[str, Tensor], masks: Masks, share: float) -> Masks:
    """The masks without the smallest `share` of the weights that they still let through, of all layers together."""
    remaining = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
    count = int(share * len(remaining))
    if count == 0:
        return {name: mask.clone() for name, mask in masks.items()}
    threshold = remaining.kthvalue(count).values
    return {name: mask & (weights[name].abs() > threshold) for name, mask in masks.items()}
