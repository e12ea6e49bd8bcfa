"""Eight yes-or-no answers to a byte: pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor

BYTE = 8


def packed_size(count: int) -> int:
    return -(-count // BYTE)


def pack(answers: Tensor) -> Tensor:
    """Bits of a boolean vector, in planes: byte i holds the answers i, i + n, i + 2n, ... of n bytes.

    Planes are joined in pairs, half of them at a time, so no answer is looked at alone.
    """
    missing = -len(answers) % BYTE
    numbers = answers.view(torch.uint8)
    joined = (F.pad(numbers, (0, missing)) if missing else numbers).view(BYTE, -1)
    for half in (4, 2, 1):
        joined = joined[:half] | joined[half:] << half
    return joined[0]


def planes(packed: Tensor, count: int) -> list[tuple[slice, Tensor]]:
    """For each plane its place in the vector of `count` answers and its answers, 0 or 1; packed may have leading dimensions."""
    size = packed.shape[-1]
    found = []
    for place in range(BYTE):
        within = slice(place * size, min((place + 1) * size, count))
        if within.start < within.stop:
            found.append((within, (packed[..., : within.stop - within.start] >> place) & 1))
    return found
