"""EB Train (You et al., 2020): search for the early-bird ticket while training, remove the channels it prunes, retrain."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pufferfish_bench import pruning
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, NonNegative, Share
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.pruning import channels

SEARCH = "search"

log = logging.getLogger(__name__)


class EBTrain(Method):
    """Train with an L1 penalty on BatchNorm scales until the channel mask has converged, prune, train to the end.

    A mask is computed after each epoch. It has converged when the newest of the last `masks` masks is nearer than
    `distance` to all the others: it is then the early-bird ticket.
    """

    def __init__(
        self, *, prune_ratio: float, penalty: NonNegative, masks: Count, distance: Share, search_epochs: int | None,
        search_milestones: Sequence[NonNegative] | None, reinit: bool,
    ):  # fmt: skip
        if not 0 < prune_ratio < 1:
            raise InputError(f"method.prune_ratio={prune_ratio} must be above 0 and below 1")
        if masks < 2:
            raise InputError(f"method.masks={masks} must be at least 2: the newest mask is compared with earlier ones")
        self.penalty = penalty
        self.prune_ratio = prune_ratio
        self.recent_masks = pruning.RecentMasks(length=masks)
        self.distance = distance
        self.search_epochs = search_epochs
        self.search_schedule = {} if search_milestones is None else {"milestones": search_milestones}
        self.surgery = RemoveChannels(prune_ratio=prune_ratio, reinit=reinit, converged=self.converged)

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        """The search may end early. It ends at least one epoch before the run does, with or without a ticket."""
        limit = epochs - 1 if self.search_epochs is None else self.search_epochs
        if not 1 <= limit < epochs:
            raise InputError(
                f"method.search_epochs={limit} must be at least 1 and below epochs={epochs}: nothing would be retrained"
            )
        return [
            Phase(SEARCH, range(limit), until=lambda run: self.converged(), schedule=self.search_schedule),
            Phase("retrain", range(limit, epochs), surgery=self.surgery),
        ]

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        if not pruning.scales(model):
            raise InputError("method=eb_train prunes channels by their BatchNorm scales, but this model has no BatchNorm2d")
        try:
            channels.find_channels(model)
        except Exception as error:  # torch.fx, which traces the model, may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"method=eb_train cannot prune the channels of this model: {reason}") from error

    def phase_started(self, run: Run) -> None:
        if run.phase.name == SEARCH and len(run.phase.epochs) < self.recent_masks.length and run.world.rank == 0:
            log.warning(
                f"no ticket can be found: the search compares {self.recent_masks.length} masks, one per epoch, but lasts "
                f"{len(run.phase.epochs)} epochs; it will prune without a ticket (see method.masks, epochs)"
            )

    def converged(self) -> bool:
        largest = self.recent_masks.largest_distance
        return self.recent_masks.full and largest is not None and largest < self.distance

    def after_backward(self, run: Run) -> None:
        if run.phase.name == SEARCH:
            for norm in run.model.modules():
                if isinstance(norm, nn.BatchNorm2d) and norm.weight.grad is not None:
                    norm.weight.grad.add_(norm.weight.detach().sign(), alpha=self.penalty)

    def after_epoch(self, run: Run) -> dict[str, float]:
        if run.phase.name != SEARCH:
            return {}
        self.recent_masks.push(pruning.channel_masks(pruning.scales(run.model), self.prune_ratio))
        return self.recent_masks.figures()

    def state_dict(self) -> dict[str, Any]:
        return self.recent_masks.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent_masks.load_state_dict(state)


class RemoveChannels(Surgery):
    """Removes the masked channels from the network. The others keep their weights, unless `reinit`."""

    def __init__(self, *, prune_ratio: float, reinit: bool, converged: Callable[[], bool]):
        self.prune_ratio = prune_ratio
        self.reinit = reinit
        self.converged = converged

    def operate(self, run: Run) -> Operation:
        scales = pruning.scales(run.model)
        masks = pruning.at_least_one(pruning.channel_masks(scales, self.prune_ratio), scales)
        left = channels.remove(run.model, masks)
        if self.reinit:
            reinitialise(run.model)
        layers = {name: {"inputs": inputs, "outputs": outputs} for name, (inputs, outputs) in left.items()}
        found = self.converged()
        note = f"ticket found after {run.epoch} epochs" if found else f"no ticket found in {run.epoch} epochs: pruned without"
        return Operation({"layers": layers, "prune_ratio": self.prune_ratio, "ticket": found, "note": note})

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        channels.resize(model, {name: (layer["inputs"], layer["outputs"]) for name, layer in details["layers"].items()})


def reinitialise(model: nn.Module) -> None:
    """Draw every weight again, as if the model had just been built."""
    for layer in model.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    if callable(initialise := getattr(model, "initialise", None)):
        model.apply(initialise)
