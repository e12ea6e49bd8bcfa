"""The memory format of convolutions: channels-last order, in which they are faster on CPUs and on GPUs."""

from typing import Any

import torch
from torch import Tensor, nn

AUTO = "auto"
FASTER_ON = ("cpu", "cuda")
VECTOR = 16  # float32 numbers in the widest vector register of a CPU


def prepare(model: nn.Module, device: torch.device, choice: bool | str) -> None:
    """Put the weights of 2-D convolutions into channels-last order, in place, if `choice` is true, or auto and it is faster.

    To be called again when layers were replaced or resized.
    """
    if device.type not in FASTER_ON if choice == AUTO else not choice:
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks this argument
    for layer in model.modules():
        if device.type == "cpu" and isinstance(layer, nn.Conv2d) and crashes(layer):
            keep_contiguous(layer)


def crashes(layer: nn.Conv2d) -> bool:
    """Whether the backward pass in channels-last order writes outside its memory on a CPU, which crashes the process.

    Seen with torch 2.13.0 and oneDNN 3.12: strided 1x1 convolutions of fewer channels than a vector register holds.
    """
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < VECTOR


def keep_contiguous(layer: nn.Conv2d) -> None:
    """Make one layer compute in contiguous order, whatever order its input has."""
    layer.weight.data = layer.weight.detach().clone(memory_format=torch.contiguous_format)
    if contiguous_input not in layer._forward_pre_hooks.values():
        layer.register_forward_pre_hook(contiguous_input)


def contiguous_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    # a copy in any case: a tensor with one channel has both orders at once, and torch might take it for channels-last
    return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs)


def is_channels_last(model: nn.Module) -> bool:
    """Whether a model has convolutions in channels-last order, and wants its images in that order."""
    weights = (layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d))
    return any(has_channels_last_order(weight) for weight in weights)


def has_channels_last_order(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
