"""Pufferfish: train the full network for a while, factorise it once, train the factors to the end."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Optimizer

from pufferfish_bench import low_rank, pruning
from pufferfish_bench.core import Method, Operation, Phase, Reducer, Run, Surgery
from pufferfish_bench.errors import InputError
from pufferfish_bench.recurrent import LSTM
from pufferfish_bench.speech import RANK
from pufferfish_bench.triggers import Trigger

WARMUP = "warmup"

log = logging.getLogger(__name__)


class Pufferfish(Method):
    """Full-rank warm-up, one factorisation, low-rank training. Without warm-up: low-rank from the first step."""

    def __init__(
        self, *, warmup_epochs: int, trigger: Trigger, start: Literal["svd", "random"], momentum: Literal["fresh", "carry"],
        ranks: Literal["ratio", "stable_rank"], layers: Mapping[str, Any] | None, prune_ratio: float, masks: int,
        warmup_reducer: Callable[..., Reducer] | None,
    ):  # fmt: skip
        if start not in STARTS:
            raise InputError(f"method.start={start} is not known; allowed: {', '.join(STARTS)}")
        if momentum not in ("fresh", "carry"):
            raise InputError(f"method.momentum={momentum} is not known; allowed: fresh, carry")
        if start == "random" and momentum == "carry":
            raise InputError("method.momentum=carry has no meaning with method.start=random: the factors are new")
        if ranks not in ("ratio", "stable_rank"):
            raise InputError(f"method.ranks={ranks} is not known; allowed: ratio, stable_rank")
        if ranks == "stable_rank" and warmup_epochs == 0:
            raise InputError("method.ranks=stable_rank looks at the warm-up, but warmup_epochs=0")
        self.warmup_epochs = warmup_epochs
        self.trigger = trigger
        self.warmup_reducer = warmup_reducer
        self.layers = low_rank.arguments(layers)
        if not 0 < prune_ratio < 1 or masks < 2:
            raise InputError(f"method.prune_ratio={prune_ratio} must be above 0 and below 1, method.masks={masks} at least 2")
        self.warmth = Warmth(prune_ratio=prune_ratio, masks=masks)
        self.own_ranks = ranks == "stable_rank"
        self.factorise = STARTS[start](choose=self.choose, reason=self.reason, carry_momentum=momentum == "carry")

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        warmup = self.warmup_epochs
        if not 0 <= warmup < epochs:
            raise InputError(
                f"warmup_epochs={warmup} must be at least 0 and below epochs={epochs}: there would be no low-rank phase"
            )
        over = Phase(WARMUP, range(warmup), until=self.warm, reducer=self.warmup_reducer)
        return [*([over] if warmup else []), Phase("low_rank", range(warmup, epochs), enter=self.factorise)]

    def warm(self, run: Run) -> bool:
        return self.trigger(self.warmth.seen, run.history)

    def reason(self, run: Run) -> str:
        """Why the switch is now."""
        if not self.warmth.seen:
            return "no warm-up"
        name = getattr(self.trigger, "func", self.trigger).__name__
        sooner = run.epoch < self.warmup_epochs
        return f"{name} after {run.epoch} epochs" if sooner else f"after warmup_epochs={run.epoch} ({name})"

    def choose(self, model: nn.Module) -> low_rank.Choice:
        """What is factored, and at which ranks."""
        choice = low_rank.choose(model, **self.layers)
        return self.warmth.own_ranks(model, choice) if self.own_ranks else choice

    def after_backward(self, run: Run) -> None:
        if run.phase.name == WARMUP and not self.warmth.first:
            self.warmth.begin(run.model, low_rank.choose(run.model, **self.layers))

    def after_epoch(self, run: Run) -> dict[str, float]:
        return self.warmth.look(run) if run.phase.name == WARMUP else {}

    def state_dict(self) -> dict[str, Any]:
        return self.warmth.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.warmth.load_state_dict(state)

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.factorise.carry_momentum and not isinstance(optimizer, SGD):
            raise InputError(f"method.momentum=carry works with SGD, not with {type(optimizer).__name__}")
        choice = low_rank.choose(model, **self.layers)
        recurrent = [name for name in choice.ranks if isinstance(model.get_submodule(name), LSTM)]
        if self.factorise.carry_momentum and recurrent:
            raise InputError(f"method.momentum=carry is not for LSTM layers ({', '.join(recurrent)}); use method.momentum=fresh")
        if not choice.ranks:
            left = "; ".join(f"{layer}: {reason}" for layer, reason in choice.left.items())
            raise InputError(f"model.low_rank leaves no layer to factorise{f' ({left})' if left else ''}")
        grown = low_rank.growth(model, choice.ranks)
        if grown and not self.own_ranks and RANK == 0:  # ranks of its own leave such layers alone
            log.warning(grown)


class Warmth:
    """What is seen of the layers during the warm-up, an epoch at a time: how their stable ranks and channel masks settle."""

    def __init__(self, *, prune_ratio: float, masks: int):
        self.prune_ratio = prune_ratio
        self.masks = pruning.Queue(length=masks)
        self.first: dict[str, float] = {}  # stable ranks by layer, before the first step
        self.last: dict[str, float] = {}
        self.seen: list[dict[str, float]] = []

    def begin(self, model: nn.Module, choice: low_rank.Choice) -> None:
        self.first = {name: low_rank.stable_rank(model.get_submodule(name)) for name in choice.ranks}
        self.last = self.first

    def look(self, run: Run) -> dict[str, float]:
        """The signs of this epoch; those of rank 0 on all ranks, since a decision hangs on them."""
        now = run.world.share({name: low_rank.stable_rank(run.model.get_submodule(name)) for name in self.first})
        scales = pruning.scales(run.model)
        if scales:
            self.masks.push(pruning.channel_masks(scales, self.prune_ratio))
        row = {
            "stable_rank": sum(now.values()) / len(now),
            "stable_rank_change": max(abs(now[name] - self.last[name]) for name in now),
        }
        if self.masks.full:
            row["mask_distance"] = self.masks.largest_distance
        self.seen.append(row)
        self.last = now
        return row

    def own_ranks(self, model: nn.Module, choice: low_rank.Choice) -> low_rank.Choice:
        """Each layer's stable rank, scaled so that it was full before training (as in Cuttlefish), where that is smaller."""
        ranks, left = {}, dict(choice.left)
        for name in choice.ranks:
            out, inputs = low_rank.unrolled(model.get_submodule(name))
            full = min(out, inputs)
            rank = min(full, max(1, round(full * self.last[name] / self.first[name])))
            if rank * (out + inputs) < out * inputs:
                ranks[name] = rank
            else:
                left[name] = f"its own rank {rank} of {full} would not make it smaller"
        return low_rank.Choice(ranks, left)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "seen": self.seen, "masks": self.masks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for row in (state["first"], state["last"], *state["seen"]):
            if not all(isinstance(value, int | float) for value in row.values()):
                raise ValueError("what was seen of the warm-up is not numbers")
        self.masks.load_state_dict(state["masks"])
        self.first, self.last, self.seen = state["first"], state["last"], state["seen"]


class FactoriseBySVD(Surgery):
    """Puts the truncated SVD of each chosen layer in its place."""

    def __init__(
        self, *, choose: Callable[[nn.Module], low_rank.Choice], reason: Callable[[Run], str], carry_momentum: bool
    ):  # fmt: skip
        self.choose = choose
        self.reason = reason
        self.carry_momentum = carry_momentum

    def operate(self, run: Run) -> Operation:
        choice = self.choose(run.model)
        momenta = momentum_of(run.optimizer, run.model) if self.carry_momentum and run.optimizer else {}
        if not choice.ranks:
            log.warning("no layer's own rank makes it smaller: the net stays as it is (method.ranks=ratio would factor it)")
        done = {"layers": self.change(run.model, choice.ranks), "left": choice.left, "note": self.reason(run)}
        return Operation(done, carried_momentum(momenta, run.model))

    def change(self, model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return low_rank.factorise(model, ranks)

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        low_rank.restructure(model, {name: layer["rank"] for name, layer in done["layers"].items()})


class FactoriseAtRandom(FactoriseBySVD):
    """Puts factors drawn from the model's own initialisation in the place of each chosen layer."""

    def change(self, model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return low_rank.restructure(model, ranks, getattr(model, "initialise", None))


STARTS = {"svd": FactoriseBySVD, "random": FactoriseAtRandom}


def momentum_of(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """The momentum of every parameter, by name."""
    buffers = {name: optimizer.state[p].get("momentum_buffer") for name, p in model.named_parameters()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def carried_momentum(momenta: dict[str, Any], model: nn.Module) -> dict[str, dict[str, Any]]:
    """The momenta of a dense model, for the parameters of the same model after it was factored."""
    carried = {}
    for name, layer in model.named_modules():
        if isinstance(layer, low_rank.LowRank) and f"{name}.weight" in momenta:
            for factor, momentum in zip("uv", low_rank.chain_rule(momenta.pop(f"{name}.weight"), layer), strict=True):
                carried[f"{name}.{factor}.weight"] = {"momentum_buffer": momentum}
            if f"{name}.bias" in momenta:
                carried[f"{name}.v.bias"] = {"momentum_buffer": momenta.pop(f"{name}.bias")}
    return carried | {name: {"momentum_buffer": momentum} for name, momentum in momenta.items()}
