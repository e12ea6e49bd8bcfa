"""Packs boolean vectors into bytes: pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor

BYTE = 8


def packed_size(count: int) -> int:
    return -(-count // BYTE)


def pack(values: Tensor) -> Tensor:
    """A boolean vector as n bytes. Bit k of all bytes is a plane: bit k of byte i is value i + k * n.

    Planes are combined in pairs, so that every operation works on whole vectors.
    """
    missing = -len(values) % BYTE
    numbers = values.view(torch.uint8)
    joined = (F.pad(numbers, (0, missing)) if missing else numbers).view(BYTE, -1)
    for half in (4, 2, 1):
        joined = joined[:half] | joined[half:] << half
    return joined[0]


def planes(packed: Tensor, count: int) -> list[tuple[slice, Tensor]]:
    """For each plane: its slice of the vector of `count` values, and its values, 0 or 1. `packed` may have leading dimensions."""
    size = packed.shape[-1]
    found = []
    for bit in range(BYTE):
        within = slice(bit * size, min((bit + 1) * size, count))
        if within.start < within.stop:
            found.append((within, (packed[..., : within.stop - within.start] >> bit) & 1))
    return found
