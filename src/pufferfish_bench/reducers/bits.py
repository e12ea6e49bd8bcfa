"""Packs boolean vectors into bytes, and counts in packed form: pure functions."""

from collections.abc import Iterable, Sequence

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


def count(packed: Iterable[Tensor]) -> list[Tensor]:
    """How many of the vectors have a one at each bit, as binary numbers: one packed vector per digit, the lowest digit first."""
    column, digits = list(packed), []
    while column:
        carries = []
        while len(column) > 1:
            one, other, *column = column
            total, carry = one ^ other, one & other
            if column:
                third, *column = column
                total, carry = total ^ third, carry | (total & third)
            column.append(total)
            carries.append(carry)
        digits.append(column[0])
        column = carries
    return digits


def compare(digits: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor]:
    """Where a count, as `count` returns it, is greater than a number, and where it is equal, both packed."""
    greater, equal = torch.zeros_like(digits[0]), ~torch.zeros_like(digits[0])
    for place in reversed(range(len(digits))):
        if number >> place & 1:
            equal = equal & digits[place]
        else:
            greater = greater | (equal & digits[place])
            equal = equal & ~digits[place]
    return greater, equal
