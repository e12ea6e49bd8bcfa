"""Eight yes-or-no answers to a byte: pure functions."""

import torch
from torch import Tensor

BYTE = 8


def packed_size(count: int) -> int:
    return -(-count // BYTE)


def pack(answers: Tensor) -> Tensor:
    """Bits of a boolean vector, in planes: byte i holds the answers i, i + n, i + 2n, ... of n bytes.

    Whole planes are shifted and joined at a time, so no answer is looked at alone.
    """
    size = packed_size(len(answers))
    planes = torch.zeros(BYTE * size, dtype=torch.uint8, device=answers.device)
    planes[: len(answers)] = answers
    first, *others = planes.view(BYTE, size)
    for place, plane in enumerate(others, start=1):
        first |= plane << place
    return first.clone()


def planes(packed: Tensor, count: int) -> list[tuple[slice, Tensor]]:
    """For each plane its place in the vector of `count` answers and its answers, 0 or 1; packed may have leading dimensions."""
    size = packed.shape[-1]
    found = []
    for place in range(BYTE):
        within = slice(place * size, min((place + 1) * size, count))
        if within.start < within.stop:
            found.append((within, (packed[..., : within.stop - within.start] >> place) & 1))
    return found
