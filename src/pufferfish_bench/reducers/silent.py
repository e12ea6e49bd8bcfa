"""No communication at all: the least that a step can take, and no way to train together."""

from torch import nn

from pufferfish_bench.core import Reducer


class Silent(Reducer):
    """Every rank follows its own gradients; before the model is judged, all take on that of rank 0.

    So the run is what rank 0 alone would have made of its part of the data, while the others only keep the machine busy.
    """

    in_step = False

    def settle(self, model: nn.Module) -> None:
        self.world.broadcast(model.state_dict().values())
