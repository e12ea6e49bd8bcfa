"""The gradients of a batch, computed at once or from its parts one after the other."""

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from pufferfish_bench.core import Run
from pufferfish_bench.training.precision import FullPrecision


def gradients(run: Run, batch: Any, parts: int, precision: FullPrecision) -> tuple[Tensor, Tensor | int]:
    """Compute the gradients of a batch on this rank; return its loss and the number of its targets.

    With several parts, only one of them is in memory with its activations. The weighted sum of their losses is the loss of the
    batch, and so are the gradients; nothing is sent before the last part.
    """
    task, count = run.task, run.task.count(batch)
    if parts == 1:
        return backward(run, batch, None, precision, clear=True), count
    total: Tensor | float = 0.0
    pieces = task.split(batch, parts)
    for number, piece in enumerate(pieces, start=1):
        with nullcontext() if number == len(pieces) else run.reducer.accumulating(run.module):
            total = total + backward(run, piece, task.count(piece) / count, precision, clear=number == 1)
    assert isinstance(total, Tensor)
    return total, count


def backward(run: Run, batch: Any, weight: Tensor | float | None, precision: FullPrecision, *, clear: bool) -> Tensor:
    """Add the gradients of a batch, times `weight`, to those that are there (with `clear`: to zero); return the weighted loss."""
    with run.watch("forward"), precision.autocast():
        loss = run.task.loss(run.module, batch)
        if weight is not None:
            loss = loss * weight
    with run.watch("backward"):
        if clear:
            run.reducer.clear(run.optimizer)
        precision.backward(loss)
    return loss.detach()
