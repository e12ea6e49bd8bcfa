"""Reads the mean loss of an epoch without waiting for a GPU."""

from typing import Any

import torch
from torch import Tensor

from pufferfish_bench.training.tally import Tally


class LossReader:
    """The mean loss so far. On a GPU the first call starts a copy to the host, and a call after the copy has ended returns it."""

    def __init__(self) -> None:
        self.copying: tuple[Tally, Tensor, Any] | None = None  # of which epoch, the copy on the host, and the event at its end

    def read(self, tally: Tally) -> float | None:
        """The mean loss, at the time of the call that started the copy; None if the copy is not done."""
        if not isinstance(tally.loss_sum, Tensor) or not self.must_wait_for(tally.loss_sum):
            return tally.mean_loss()
        if self.copying is None or self.copying[0] is not tally:  # the loss of the epoch before is of no interest
            self.copying = tally, *self.copy(tally.loss_sum / tally.count)
            return None
        _, loss, done = self.copying
        if not done.query():
            return None
        self.copying = None
        return float(loss)

    def must_wait_for(self, tensor: Tensor) -> bool:
        """Whether reading the tensor waits for a device."""
        return tensor.is_cuda

    def copy(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Start to copy a number to the host."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return host, done
