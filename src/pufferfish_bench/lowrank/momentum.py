"""The momentum of SGD across a factorisation: that of a dense weight becomes those of its factors, by the chain rule."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.lowrank.factorise import empty_dense, factored_layers
from pufferfish_bench.lowrank.kinds import FactoredLayer, kind_of_factored, known_kind


def carries_momentum(layer: nn.Module) -> bool:
    """Whether the momentum of a layer can be carried to its factors; not of an LSTM layer."""
    return known_kind(layer).carries_momentum


def momentum_of(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The momentum of every parameter, by name."""
    buffers = {name: optimizer.state.get(p, {}).get("momentum_buffer") for name, p in model.named_parameters()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def carry_momentum(momenta: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The momenta of a model that was just factorised, from those of the dense model; both by parameter name."""
    rest = dict(momenta)
    carried: dict[str, Tensor] = {}
    for name, layer in factored_layers(model):
        own = {key.removeprefix(f"{name}."): rest.pop(key) for key in momenta if key in rest and belongs(key, name, layer)}
        if own:
            carried |= {f"{name}.{key}": momentum for key, momentum in of_factors(own, layer).items()}
    return carried | rest


def belongs(key: str, name: str, layer: FactoredLayer) -> bool:
    """Whether a parameter was one of the dense layer; the momenta of a layer that was low-rank before stay as they are."""
    return key.startswith(f"{name}.") and key.removeprefix(f"{name}.") not in dict(layer.named_parameters())


@torch.no_grad()
def of_factors(momenta: Mapping[str, Tensor], layer: FactoredLayer) -> dict[str, Tensor]:
    """The momenta of a low-rank layer's parameters, from those of the parameters of the dense layer."""
    kind, dense, directions = kind_of_factored(layer), empty_dense(layer), copy.deepcopy(layer)
    for name, parameter in dense.named_parameters():
        parameter.copy_(momenta[name]) if name in momenta else parameter.zero_()
    matrices, targets = kind.matrices(dense), kind.factors(directions)
    for name, factors in kind.factors(layer).items():
        u, v, matrix = (tensor.flatten(1) for tensor in (*factors, matrices[name]))
        for target, direction in zip(targets[name], (v.T @ matrix, matrix @ u.T), strict=True):
            target.copy_(direction.view_as(target))
    kind.copy_rest(dense, directions)
    origins = kind.origins(dense)
    return {name: directions.get_parameter(name).detach() for name, origin in origins.items() if origin in momenta}
