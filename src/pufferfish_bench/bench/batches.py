"""Takes all batches of an epoch, ours or a rival's, and checks what arrives."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pufferfish_bench.core import Task


def drain(batches: Iterable[tuple[Tensor, Tensor]], expected: int, size: int) -> None:
    """Take every batch, and check that `expected` images of `size` arrive as floats."""
    count = 0
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert images.shape[1:] == (3, size, size)
        count += len(labels)
    assert count == expected


def drain_epoch(task: Task, expected: int, size: int) -> None:
    drain(task.batches(0, 0), expected, size)
