"""What to prune: channel masks by BatchNorm scale, weight masks by magnitude. Pure functions of tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Masks = dict[str, Tensor]  # layer name -> True for what is kept


def scales(model: nn.Module) -> dict[str, Tensor]:
    """The absolute BatchNorm scale of every channel, by the name of its BatchNorm2d."""
    return {
        name: norm.weight.detach().abs() for name, norm in model.named_modules() if isinstance(norm, nn.BatchNorm2d)
    }  # fmt: skip


def channel_masks(scales: Mapping[str, Tensor], ratio: float) -> Masks:
    """Keep the channels whose scale is above the `ratio` quantile of all scales in `scales`."""
    ordered = torch.cat(list(scales.values())).sort().values
    threshold = ordered[int(ratio * len(ordered))]
    return {name: scale > threshold for name, scale in scales.items()}


def at_least_one(masks: Masks, scales: Mapping[str, Tensor]) -> Masks:
    """The same masks, except that a layer which would lose all its channels keeps its largest."""
    left = {}
    for name, mask in masks.items():
        left[name] = mask.clone()
        if not mask.any():
            left[name][scales[name].argmax()] = True
    return left


def distance(one: Masks, other: Masks) -> float:
    """The fraction of entries in which two masks differ."""
    differing = sum(int((one[name] != other[name]).sum()) for name in one)
    return differing / sum(mask.numel() for mask in one.values())


class RecentMasks:
    """The last `length` masks, and the distance between the newest and the others."""

    def __init__(self, *, length: int):
        self.length = length
        self.masks: list[Masks] = []

    @property
    def full(self) -> bool:
        return len(self.masks) == self.length

    @property
    def largest_distance(self) -> float | None:
        """Between the newest mask and any of the others; None if there are no others yet."""
        *others, newest = self.masks or [{}]
        return max((distance(newest, other) for other in others), default=None)

    def push(self, masks: Masks) -> None:
        self.masks = [*self.masks, {name: mask.cpu() for name, mask in masks.items()}][-self.length :]

    def figures(self) -> dict[str, float]:
        """The column of a run's record; empty until there are `length` masks."""
        largest = self.largest_distance
        return {"mask_distance": largest} if self.full and largest is not None else {}

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        masks = state["masks"]
        if len(masks) > self.length or not all(isinstance(mask, Tensor) for entry in masks for mask in entry.values()):
            raise ValueError(f"expected at most {self.length} masks, each a tensor")
        self.masks = masks


def prune_smallest(weights: Mapping[str, Tensor], masks: Masks, share: float) -> Masks:
    """Prune the smallest `share` of the weights that `masks` still keep, of all layers together; return the new masks."""
    remaining = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
    count = int(share * len(remaining))
    if count == 0:
        return {name: mask.clone() for name, mask in masks.items()}
    threshold = remaining.kthvalue(count).values
    return {name: mask & (weights[name].abs() > threshold) for name, mask in masks.items()}
