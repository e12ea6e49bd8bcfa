"""Pufferfish: train the full network for a while, factorise it once, train the factors to the end."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from pufferfish_bench import low_rank
from pufferfish_bench.core import Method, Operation, Phase, Reducer, Run, Surgery
from pufferfish_bench.errors import InputError
from pufferfish_bench.recurrent import LSTM


class Pufferfish(Method):
    """Full-rank warm-up, one factorisation, low-rank training. Without warm-up: low-rank from the first step."""

    def __init__(
        self, *, warmup_epochs: int, start: str, momentum: str, layers: Mapping[str, Any],
        warmup_reducer: Callable[..., Reducer] | None,
    ):  # fmt: skip
        if start not in STARTS:
            raise InputError(f"method.start={start} is not known; allowed: {', '.join(STARTS)}")
        if momentum not in ("fresh", "carry"):
            raise InputError(f"method.momentum={momentum} is not known; allowed: fresh, carry")
        if start == "random" and momentum == "carry":
            raise InputError("method.momentum=carry has no meaning with method.start=random: the factors are new")
        self.warmup_epochs = warmup_epochs
        self.warmup_reducer = warmup_reducer
        self.factorise = STARTS[start](layers=layers, carry_momentum=momentum == "carry")

    def plan(self, epochs: int) -> list[Phase]:
        warmup = self.warmup_epochs
        if not 0 <= warmup < epochs:
            raise InputError(
                f"warmup_epochs={warmup} must be at least 0 and below epochs={epochs}: there would be no low-rank phase"
            )
        phases = [Phase("warmup", range(warmup), reducer=self.warmup_reducer)] if warmup else []
        return [*phases, Phase("low_rank", range(warmup, epochs), enter=self.factorise)]

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.factorise.carry_momentum and not isinstance(optimizer, SGD):
            raise InputError(f"method.momentum=carry works with SGD, not with {type(optimizer).__name__}")
        choice = low_rank.choose(model, **self.factorise.layers)
        recurrent = [name for name in choice.ranks if isinstance(model.get_submodule(name), LSTM)]
        if self.factorise.carry_momentum and recurrent:
            raise InputError(f"method.momentum=carry is not for LSTM layers ({', '.join(recurrent)}); use method.momentum=fresh")
        if not choice.ranks:
            left = "; ".join(f"{layer}: {reason}" for layer, reason in choice.left.items())
            raise InputError(f"model.low_rank leaves no layer to factorise{f' ({left})' if left else ''}")


class FactoriseBySVD(Surgery):
    """Puts the truncated SVD of each chosen layer in its place."""

    def __init__(self, *, layers: Mapping[str, Any], carry_momentum: bool):
        self.layers = layers
        self.carry_momentum = carry_momentum

    def operate(self, run: Run) -> Operation:
        choice = low_rank.choose(run.model, **self.layers)
        momenta = momentum_of(run.optimizer, run.model) if self.carry_momentum and run.optimizer else {}
        done = {"layers": self.change(run.model, choice.ranks), "left": choice.left}
        return Operation(done, carried_momentum(momenta, run.model))

    def change(self, model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
        return low_rank.factorise(model, ranks)

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        low_rank.restructure(model, {name: int(layer["rank"]) for name, layer in done["layers"].items()})


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
