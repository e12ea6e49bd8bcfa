"""Pufferfish in anybody's training loop: train the full-rank network, factorise it once, train the factors.

A plain loop needs three lines:

    switch = lowrank.SwitchToLowRank(model, epoch=5, sample=[images])
    for epoch in range(20):
        train_one_epoch(model, optimizer)
        if groups := switch(optimizer):
            optimizer = switch.carry(torch.optim.SGD(groups))

With DistributedDataParallel the switch has the module inside, and the user wraps it again:

    switch = lowrank.SwitchToLowRank(ddp.module, epoch=5, sample=[images])
    for epoch in range(20):
        train_one_epoch(ddp, optimizer)
        if groups := switch(optimizer):
            ddp = DistributedDataParallel(ddp.module)
            optimizer = switch.carry(torch.optim.SGD(groups))

The groups keep their settings (learning rate, momentum, weight decay and all others), so that the optimizer needs none.

A schedule of the learning rate holds the old optimizer. Build it again as at the beginning, and give it the state of the old one
and the learning rates, which its constructor may change:

    if groups := switch(optimizer):
        rates, state = [group["lr"] for group in groups], scheduler.state_dict()
        optimizer = torch.optim.SGD(groups)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
        scheduler.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate

A checkpoint has the state of the switch too. To resume, build the model, the optimizer and the switch as at the beginning, then
load the switch first. If the model was switched, this gives it low-rank layers, so that the other states fit:

    torch.save({"switch": switch.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    saved = torch.load(path)
    if groups := switch.load_state_dict(saved["switch"], optimizer):
        optimizer = torch.optim.SGD(groups)  # with DistributedDataParallel: wrap ddp.module again
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank.auto import is_auto, resolve
from pufferfish_bench.lowrank.choice import check, choose
from pufferfish_bench.lowrank.factorise import empty_factors, factorise_layers, replace_all
from pufferfish_bench.lowrank.kinds import FactoredLayer, get_layer, known_kind
from pufferfish_bench.lowrank.momentum import carries_momentum, carry_momentum, momentum_of
from pufferfish_bench.lowrank.rehearsal import rehearse


class SwitchToLowRank:
    """Factorises a model once. Call it with the optimizer at the end of every epoch.

    epoch: the switch is at the end of this epoch, counted from 1.
    sample: the arguments of one forward pass, for `keep="auto"` and `first="auto"`. If given, the low-rank layers are tried
        at once: a model whose code does not work with them is refused, and a warning names layers that are not called.
    keep, first, rank_ratio, ranks: which layers, and at which ranks: see `lowrank.choose` and `lowrank.resolve`.
    carry_momentum: the new optimizer starts with the momentum of the old one, which must be SGD.

    With torch.distributed, all ranks must call it; rank 0 computes the SVD and sends the factors to the others.
    `choice` says which layers it factorises and why others stay dense; after the switch, `done` has their ranks and energies.
    `state_dict` and `load_state_dict` are for checkpoints: the module's text shows how to resume.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        epoch: int,
        sample: Sequence[Any] | None = None,
        rank_ratio: float = 0.25,
        keep: Literal["auto"] | Sequence[str] | Mapping[str, str] = "auto",
        first: str | None = "auto",
        ranks: Mapping[str, int | float] | None = None,
        carry_momentum: bool = False,
    ):
        if isinstance(model, DistributedDataParallel):
            raise InputError(
                "the model is wrapped in DistributedDataParallel: pass model.module, and wrap it again after the switch"
            )
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
            raise InputError(f"epoch={epoch} must be an integer of at least 1: the epoch at whose end the model is factorised")
        settings: Mapping[str, Any] = {"keep": keep, "first": first, "rank_ratio": rank_ratio, "ranks": ranks}
        if is_auto(settings):
            if sample is None:
                raise InputError("keep=auto and first=auto need sample=[...], the arguments of one forward pass; or name layers")
            settings = resolve(model, sample, settings)
        self.model = model
        self.epoch = epoch
        self.choice = choose(model, **settings)
        if not self.choice.ranks:
            left = "; ".join(f"{layer}: {reason}" for layer, reason in self.choice.left.items())
            raise InputError(f"keep and first leave no layer to factorise{f' ({left})' if left else ''}: keep fewer layers")
        warning = None if sample is None else rehearse(model, self.choice.ranks, sample)
        if warning:
            warnings.warn(warning, stacklevel=2)
        without = [name for name in self.choice.ranks if not carries_momentum(get_layer(model, name))]
        if carry_momentum and without:
            raise InputError(f"carry_momentum does not work with LSTM layers ({', '.join(without)}): keep them, or leave it out")
        self.carry_momentum = carry_momentum
        self.epochs = 0  # that have ended
        self.done: dict[str, dict[str, float]] = {}
        self.momenta: dict[str, torch.Tensor] = {}

    def __call__(self, optimizer: Optimizer) -> list[dict[str, Any]] | None:
        """At the end of an epoch. Returns None, or after the switch the parameter groups for a new optimizer.

        A factor is in the group of the weight that it comes from, a bias in that of the old bias.
        """
        self.epochs += 1
        return self.switch(optimizer) if self.epochs == self.epoch else None

    def switch(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        if self.carry_momentum and not isinstance(optimizer, SGD):
            raise InputError(f"carry_momentum works with SGD, not with {type(optimizer).__name__}")
        momenta = momentum_of(optimizer, self.model) if self.carry_momentum else {}
        old = {name: get_layer(self.model, name) for name in self.choice.ranks}
        factored, self.done = factorised_once(self.model, self.choice.ranks)
        replace_all(self.model, factored)
        self.momenta = carry_momentum(momenta, self.model)
        return new_groups(optimizer, old, factored)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint at the end of an epoch: the epochs that have ended and, after the switch, the layers' ranks."""
        return {"epochs": self.epochs, "layers": {name: dict(layer) for name, layer in self.done.items()}}

    def load_state_dict(self, state: Mapping[str, Any], optimizer: Optimizer) -> list[dict[str, Any]] | None:
        """Go on from a checkpoint, with a dense model and its optimizer.

        Returns None; or, if the checkpoint was saved after the switch, the parameter groups for a new optimizer. The model then
        has low-rank layers without values: load its state and that of the new optimizer afterwards.
        """
        if self.done:
            raise InputError("the model is switched already: build the model, its optimizer and the switch again, then load")
        ranks = {name: int(layer["rank"]) for name, layer in state["layers"].items()}
        check(self.model, ranks)
        self.epochs, self.done = state["epochs"], {name: dict(layer) for name, layer in state["layers"].items()}
        if not ranks:
            return None
        old = {name: get_layer(self.model, name) for name in ranks}
        factored = {name: empty_factors(layer, ranks[name]) for name, layer in old.items()}
        replace_all(self.model, factored)
        return new_groups(optimizer, old, factored)

    def carry(self, optimizer: Optimizer) -> Optimizer:
        """Give the new optimizer the momentum of the old one, if `carry_momentum` is set; returns the optimizer."""
        parameters = dict(self.model.named_parameters())
        for name, momentum in self.momenta.items():
            optimizer.state[parameters[name]]["momentum_buffer"] = momentum
        self.momenta = {}
        return optimizer


def new_groups(
    optimizer: Optimizer, old: Mapping[str, nn.Module], factored: Mapping[str, nn.Module]
) -> list[dict[str, Any]]:  # fmt: skip
    """The groups of an optimizer with the parameters of low-rank layers in the places of the old ones."""
    successors: dict[int, list[nn.Parameter]] = {}
    for name, layer in old.items():
        for parameter in layer.parameters():
            successors[id(parameter)] = []
        for new, origin in known_kind(layer).origins(layer).items():
            successors[id(layer.get_parameter(origin))].append(factored[name].get_parameter(new))
    groups = []
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({"params": [new for p in group["params"] for new in successors.get(id(p), [p])], **settings})
    return groups


def factorised_once(
    model: nn.Module, ranks: Mapping[str, int]
) -> tuple[dict[str, FactoredLayer], dict[str, dict[str, float]]]:  # fmt: skip
    """As `factorise_layers`; in several processes rank 0 computes, and all end up with the same factors, bit for bit."""
    check(model, ranks)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return factorise_layers(model, ranks)
    factored: dict[str, FactoredLayer] = {}
    report: list[Any] = [None, {}]  # the error of rank 0, and what it did
    if dist.get_rank() == 0:
        try:
            factored, report[1] = factorise_layers(model, ranks)
        except Exception as error:  # whatever it is: the other ranks would wait for this one
            report[0] = str(error) or type(error).__name__
    dist.broadcast_object_list(report, src=0)
    if report[0] is not None:
        raise InputError(report[0])
    for name, rank in ranks.items():
        factored[name] = factored[name] if name in factored else empty_factors(get_layer(model, name), rank)
        for parameter in factored[name].parameters():
            sent = parameter.detach().contiguous()  # a copy in channels-last format, which not every backend sends
            dist.broadcast(sent, src=0)
            parameter.detach().copy_(sent)
    return factored, report[1]
