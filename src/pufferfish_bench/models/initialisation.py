"""Initialisation of layers."""

from torch import nn


def fan_out_normal(layer: nn.Module) -> None:
    """Convolutions: Kaiming normal with the fan-out; everything else: PyTorch's default."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
