"""Measures the layers during Pufferfish's warm-up: stable ranks and channel masks, once per epoch."""

from typing import Any

from torch import nn

from pufferfish_bench import lowrank, pruning
from pufferfish_bench.core import Run


class WarmupMonitor:
    """The rows that a trigger decides on, and the stable ranks that may become the ranks of the factors."""

    def __init__(self, *, prune_ratio: float, masks: int):
        self.prune_ratio = prune_ratio
        self.recent_masks = pruning.RecentMasks(length=masks)
        self.first: dict[str, float] = {}  # stable ranks by layer, before the first step
        self.last: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []  # one per epoch

    def start(self, run: Run, choice: lowrank.Choice) -> None:
        """Measure the layers that will be factorised, before the first step."""
        self.first = self.last = stable_ranks(run, list(choice.ranks))

    def epoch_ended(self, run: Run) -> dict[str, float]:
        """Measure after an epoch; return the columns of its row."""
        now = stable_ranks(run, list(self.first))
        scales = pruning.scales(run.model)
        if scales:
            self.recent_masks.push(pruning.channel_masks(scales, self.prune_ratio))
        row = {
            "stable_rank": sum(now.values()) / len(now),
            "stable_rank_change": max(abs(now[name] - self.last[name]) for name in now),
            **self.recent_masks.figures(),
        }
        self.rows.append(row)
        self.last = now
        return row

    def with_stable_ranks(self, model: nn.Module, choice: lowrank.Choice) -> lowrank.Choice:
        """The choice with each layer's stable rank, scaled so that it was full before training (as in Cuttlefish).

        A layer that would not become smaller stays dense.
        """
        ranks, left = {}, dict(choice.left)
        for name in choice.ranks:
            out, inputs = lowrank.matrix_shape(lowrank.get_layer(model, name))
            full = min(out, inputs)
            rank = min(full, max(1, round(full * self.last[name] / self.first[name])))
            if rank * (out + inputs) < out * inputs:
                ranks[name] = rank
            else:
                left[name] = f"its stable rank {rank} of {full} would not make it smaller"
        return lowrank.Choice(ranks, left)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "rows": self.rows, "masks": self.recent_masks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for row in (state["first"], state["last"], *state["rows"]):
            if not all(isinstance(value, int | float) for value in row.values()):
                raise ValueError("the stable ranks and rows of the warm-up must be numbers")
        self.recent_masks.load_state_dict(state["masks"])
        self.first, self.last, self.rows = state["first"], state["last"], state["rows"]


def stable_ranks(run: Run, names: list[str]) -> dict[str, float]:
    """The stable rank of each layer, as rank 0 computes it: all ranks must decide alike."""
    found: dict[str, float] = run.world.broadcast_object(
        {name: lowrank.stable_rank(lowrank.get_layer(run.model, name)) for name in names}
    )
    return found
