"""The memory format of convolutions."""

import torch
from torch import nn

from pufferfish_bench.base.errors import InputError


def channels_last(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its convolutions in channels-last order; refused where torch would crash on it."""
    for name, layer in model.named_modules():
        if device.type == "cpu" and isinstance(layer, nn.Conv2d) and crashes(layer):
            raise InputError(
                f"channels_last=true: torch 2.13 crashes on a CPU on strided 1x1 convolutions of fewer than 8 channels, and "
                f"{name} has {layer.in_channels}; use channels_last=false or a larger model.net.width"
            )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def crashes(layer: nn.Conv2d) -> bool:
    """Seen with torch 2.13.0 and oneDNN 3.12: the backward pass writes outside its memory."""
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < 8
