"""Pufferfish: train the full-rank network for a few epochs, factorise it once, train the factors to the end."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Optimizer

from pufferfish_bench import lowrank
from pufferfish_bench.base.console import RANK
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method, Operation, Phase, Reducer, Run, Surgery
from pufferfish_bench.distributed import factorisation
from pufferfish_bench.training.triggers import Trigger
from pufferfish_bench.training.warmup_monitor import WarmupMonitor

WARMUP = "warmup"

log = logging.getLogger(__name__)


class Pufferfish(Method):
    """Full-rank warm-up, one factorisation, low-rank training. With warmup_epochs=0: low-rank from the first step."""

    def __init__(
        self, *, warmup_epochs: int, trigger: Trigger, start: Literal["svd", "random"], momentum: Literal["fresh", "carry"],
        ranks: Literal["ratio", "stable_rank"], layers: Mapping[str, Any] | None, prune_ratio: float, masks: int,
        warmup_reducer: Callable[..., Reducer] | None,
    ):  # fmt: skip
        for name, value, allowed in (
            ("start", start, list(SURGERIES)),
            ("momentum", momentum, ["fresh", "carry"]),
            ("ranks", ranks, ["ratio", "stable_rank"]),
        ):
            if value not in allowed:
                raise InputError(f"method.{name}={value} is not known; allowed: {', '.join(allowed)}")
        if start == "random" and momentum == "carry":
            raise InputError("method.momentum=carry does not work with method.start=random, where the factors are new")
        if ranks == "stable_rank" and warmup_epochs == 0:
            raise InputError("method.ranks=stable_rank needs a warm-up to measure ranks in, but warmup_epochs=0")
        if not 0 < prune_ratio < 1 or masks < 2:
            raise InputError(f"method.prune_ratio={prune_ratio} must be above 0 and below 1, method.masks={masks} at least 2")
        self.warmup_epochs = warmup_epochs
        self.trigger = trigger
        self.warmup_reducer = warmup_reducer
        self.layers = lowrank.arguments(layers)
        self.monitor = WarmupMonitor(prune_ratio=prune_ratio, masks=masks)
        self.use_stable_ranks = ranks == "stable_rank"
        self.factorise = SURGERIES[start](choose=self.choose, reason=self.reason, carry_momentum=momentum == "carry")

    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        warmup = self.warmup_epochs
        if not 0 <= warmup < epochs:
            raise InputError(
                f"warmup_epochs={warmup} must be at least 0 and below epochs={epochs}: there would be no low-rank phase"
            )
        first = Phase(WARMUP, range(warmup), until=self.triggered, reducer=self.warmup_reducer)
        return [*([first] if warmup else []), Phase("low_rank", range(warmup, epochs), surgery=self.factorise)]

    def triggered(self, run: Run) -> bool:
        return self.trigger(self.monitor.rows, run.history)

    def reason(self, run: Run) -> str:
        """Why the warm-up ended."""
        if not self.monitor.rows:
            return "no warm-up"
        name = getattr(self.trigger, "func", self.trigger).__name__
        early = run.epoch < self.warmup_epochs
        return f"{name} after {run.epoch} epochs" if early else f"after warmup_epochs={run.epoch} ({name})"

    def choose(self, model: nn.Module) -> lowrank.Choice:
        """The layers to factorise and their ranks."""
        choice = lowrank.choose(model, **self.layers)
        return self.monitor.with_stable_ranks(model, choice) if self.use_stable_ranks else choice

    def phase_started(self, run: Run) -> None:
        if run.phase.name == WARMUP:
            self.monitor.start(run, lowrank.choose(run.model, **self.layers))

    def after_epoch(self, run: Run) -> dict[str, float]:
        return self.monitor.epoch_ended(run) if run.phase.name == WARMUP else {}

    def state_dict(self) -> dict[str, Any]:
        return self.monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.monitor.load_state_dict(state)

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        carry = self.factorise.carry_momentum
        if carry and not isinstance(optimizer, SGD):
            raise InputError(f"method.momentum=carry works with SGD, not with {type(optimizer).__name__}")
        choice = lowrank.choose(model, **self.layers)
        recurrent = [name for name in choice.ranks if not lowrank.carries_momentum(model.get_submodule(name))]
        if carry and recurrent:
            raise InputError(
                f"method.momentum=carry does not work with LSTM layers ({', '.join(recurrent)}); use method.momentum=fresh"
            )
        if not choice.ranks:
            left = "; ".join(f"{layer}: {reason}" for layer, reason in choice.left.items())
            raise InputError(f"model.low_rank leaves no layer to factorise{f' ({left})' if left else ''}")
        grown = lowrank.growth(model, choice.ranks)
        if grown and not self.use_stable_ranks and RANK == 0:  # with stable ranks such layers stay dense
            log.warning(grown)

    def rehearse(self, model: nn.Module, sample: Sequence[Any]) -> None:
        warning = lowrank.rehearse(model, lowrank.choose(model, **self.layers).ranks, sample)
        if warning and RANK == 0:
            log.warning(warning)


class FactoriseBySVD(Surgery):
    """Replaces each chosen layer by its truncated SVD; the layers are shared out over ranks."""

    collective = True

    def __init__(
        self, *, choose: Callable[[nn.Module], lowrank.Choice], reason: Callable[[Run], str], carry_momentum: bool
    ):  # fmt: skip
        self.choose = choose
        self.reason = reason
        self.carry_momentum = carry_momentum

    def operate(self, run: Run) -> Operation:
        choice = self.choose(run.model)
        momenta = lowrank.momentum_of(run.optimizer, run.model) if self.carry_momentum and run.phase_index > 0 else {}
        if not choice.ranks and RANK == 0:
            log.warning("no layer is smaller at its stable rank: the model stays dense (method.ranks=ratio would factorise it)")
        details = {"layers": self.change(run, choice.ranks), "left": choice.left, "note": self.reason(run)}
        carried = lowrank.carry_momentum(momenta, run.model)
        return Operation(details, {name: {"momentum_buffer": momentum} for name, momentum in carried.items()})

    def change(self, run: Run, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return factorisation.factorise(run.world, run.model, ranks)

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        lowrank.restructure(model, {name: layer["rank"] for name, layer in details["layers"].items()})


class FactoriseAtRandom(FactoriseBySVD):
    """Replaces each chosen layer by random factors, drawn by the model's own initialisation, on rank 0."""

    collective = False

    def change(self, run: Run, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return lowrank.restructure(run.model, ranks, getattr(run.model, "initialise", None))


SURGERIES = {"svd": FactoriseBySVD, "random": FactoriseAtRandom}  # by method.start
