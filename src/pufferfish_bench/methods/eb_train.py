"""EB Train: look for the early-bird ticket while training, then take the channels out that it leaves out (You et al., 2020)."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pufferfish_bench import channels, pruning
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, NonNegative, Share

SEARCH = "search"

log = logging.getLogger(__name__)


class EBTrain(Method):
    """Train with an L1 penalty on BatchNorm scales until the mask of the largest ones has settled, prune, train to the end.

    The mask has settled when the newest of the last `masks` ones, an epoch each, is nearer than `distance` to all the others.
    """

    def __init__(
        self, *, prune_ratio: float, penalty: NonNegative, masks: Count, distance: Share, search_epochs: int | None,
        search_milestones: Sequence[NonNegative] | None, reinit: bool,
    ):  # fmt: skip
        if not 0 < prune_ratio < 1:
            raise InputError(f"method.prune_ratio={prune_ratio} must be above 0 and below 1")
        if masks < 2:
            raise InputError(f"method.masks={masks} must be at least 2: one is compared with others")
        self.penalty = penalty
        self.prune_ratio = prune_ratio
        self.queue = pruning.Queue(length=masks)
        self.distance = distance
        self.search_epochs = search_epochs
        self.search_schedule = {} if search_milestones is None else {"milestones": search_milestones}
        self.limit = masks  # of the search, in epochs; the plan knows
        self.surgery = RemoveChannels(prune_ratio=prune_ratio, reinit=reinit, settled=self.settled)

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        """The search may end early; it ends an epoch before the run at the latest, ticket or no ticket."""
        limit = epochs - 1 if self.search_epochs is None else self.search_epochs
        if not 1 <= limit < epochs:
            raise InputError(
                f"method.search_epochs={limit} must be at least 1 and below epochs={epochs}: nothing would be retrained"
            )
        self.limit = limit
        return [
            Phase(SEARCH, range(limit), until=lambda run: self.settled(), schedule=self.search_schedule),
            Phase("retrain", range(limit, epochs), enter=self.surgery),
        ]

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.limit < self.queue.length:
            log.warning(
                f"no ticket can be found: {self.queue.length} masks take as many epochs, and the search has {self.limit}; "
                "it will prune without one (see method.masks, epochs)"
            )
        if not pruning.scales(model):
            raise InputError("method=eb_train prunes channels by their BatchNorm; this model has none")
        channels.followed(model)  # says so if it cannot
        weights = next(model.parameters())
        if weights.device.type == "cpu" and any(not p.is_contiguous() for p in model.parameters()):
            raise InputError(
                "channels_last=true crashes torch on a CPU when few channels are left; leave it out with method=eb_train"
            )

    def settled(self) -> bool:
        return self.queue.full and self.queue.largest_distance < self.distance

    def after_backward(self, run: Run) -> None:
        if run.phase.name == SEARCH:
            for norm in run.model.modules():
                if isinstance(norm, nn.BatchNorm2d):
                    norm.weight.grad.add_(norm.weight.detach().sign(), alpha=self.penalty)

    def after_epoch(self, run: Run) -> dict[str, float]:
        if run.phase.name != SEARCH:
            return {}
        self.queue.push(pruning.channel_masks(pruning.scales(run.model), self.prune_ratio))
        return {"mask_distance": self.queue.largest_distance} if self.queue.full else {}

    def state_dict(self) -> dict[str, Any]:
        return self.queue.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue.load_state_dict(state)


class RemoveChannels(Surgery):
    """Makes the network smaller by the channels that the mask leaves out; the others keep their weights, unless `reinit`."""

    def __init__(self, *, prune_ratio: float, reinit: bool, settled: Callable[[], bool]):
        self.prune_ratio = prune_ratio
        self.reinit = reinit
        self.settled = settled

    def operate(self, run: Run) -> Operation:
        scales = pruning.scales(run.model)
        masks = pruning.at_least_one(pruning.channel_masks(scales, self.prune_ratio), scales)
        left = channels.remove(run.model, masks)
        if self.reinit:
            start_anew(run.model)
        layers = {name: {"inputs": inputs, "outputs": outputs} for name, (inputs, outputs) in left.items()}
        found = self.settled()
        note = f"ticket found after {run.epoch} epochs" if found else f"no ticket found in {run.epoch} epochs: pruned without"
        return Operation({"layers": layers, "prune_ratio": self.prune_ratio, "ticket": found, "note": note})

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        channels.resize(model, {name: (layer["inputs"], layer["outputs"]) for name, layer in done["layers"].items()})


def start_anew(model: nn.Module) -> None:
    """Draw every weight as if the model had just been built."""
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    if hasattr(model, "initialise"):
        model.apply(model.initialise)
