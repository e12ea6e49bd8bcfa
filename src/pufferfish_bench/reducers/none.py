"""No communication: a lower bound for the time of a step, not a way to train on several ranks."""

from torch import nn

from pufferfish_bench.core import Reducer


class NoCommunication(Reducer):
    """Every rank trains with its own gradients; before evaluation, all copy the model of rank 0.

    The result is that of rank 0 trained on its part of the data; the other ranks only keep the machine busy.
    """

    synchronous = False

    def sync_buffers(self, model: nn.Module) -> None:
        self.world.broadcast(model.state_dict().values())
