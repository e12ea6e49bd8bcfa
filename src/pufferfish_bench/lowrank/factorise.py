"""Factorise the linear, convolution and LSTM layers of any nn.Module, and merge them again.

A weight, as a matrix W (out, in), becomes two: u (rank, in) is applied first, then v (out, rank). For a convolution, u has the
kernel, the stride and the padding, and v has kernel size 1. The bias stays in v. In an LSTM layer, the two matrices of each gate
are factorised separately.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.lowrank.choice import check
from pufferfish_bench.lowrank.layers import FactoredLayer, Layer, LowRank, get_layer
from pufferfish_bench.lowrank.lstm import LSTM, LowRankLSTM, gate_matrices
from pufferfish_bench.lowrank.random_energy import random_layer_energy
from pufferfish_bench.lowrank.svd import svd_work, truncated_svd

# memory formats of images and volumes, by the number of dimensions of a weight
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def factorise(model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Replace layers by their truncated SVD, in place. Everything else stays as it is, bit for bit.

    `ranks` maps layer names (as in `model.named_modules()`) to ranks, for example `lowrank.choose(...).ranks`. An optimizer
    that was created before still holds the old parameters: create a new one.

    Returns for each layer its rank, the fraction of its energy (sum of squared singular values) that was kept, the fraction that
    would be kept of a random layer of its shape, and the seconds it took. If a layer cannot be factorised, an InputError says why
    and the model is unchanged.
    """
    check(model, ranks)
    factored, done = factorise_layers(model, ranks)
    replace_all(model, factored)
    return done


def factorise_layers(
    model: nn.Module, ranks: Mapping[str, int]
) -> tuple[dict[str, FactoredLayer], dict[str, dict[str, float]]]:  # fmt: skip
    """The truncated SVD of each layer, and what `factorise` returns; does not change the model."""
    factored, done = {}, {}
    for name, rank in ranks.items():
        start = time.perf_counter()
        layer = get_layer(model, name)
        factored[name], energy = factorise_layer(layer, rank)
        done[name] = {"rank": rank, "energy": energy, "seconds": time.perf_counter() - start}
        done[name]["random_energy"] = random_layer_energy(layer, rank)
    return factored, done


def restructure(
    model: nn.Module, ranks: Mapping[str, int], initialise: Callable[[nn.Module], None] | None = None
) -> dict[str, dict[str, float]]:
    """Replace layers by low-rank ones with random weights, in place; `initialise` is applied to each factor.

    Returns the rank of each layer. If a layer cannot be factorised, an InputError says why and the model is unchanged.
    """
    check(model, ranks)
    factored = {}
    for name, rank in ranks.items():
        factored[name] = random_factors(get_layer(model, name), rank)
        if initialise:
            factored[name].apply(initialise)
    replace_all(model, factored)
    return {name: {"rank": rank} for name, rank in ranks.items()}


def merge(model: nn.Module) -> nn.Module:
    """Replace every low-rank layer by the dense layer that computes the same, in place.

    Returns the model; if `model` itself is a low-rank layer, its dense layer.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, FactoredLayer):
            model = replace(model, name, merge_layer(module))
    return model


def stable_rank(layer: Layer) -> float:
    """The squared Frobenius norm of a layer's matrix divided by its squared spectral norm: between 1 and its rank.

    For an LSTM layer: the mean over the matrices of its gates.
    """
    matrices = gate_matrices(layer).values() if isinstance(layer, LSTM) else [layer.weight.detach().flatten(1)]
    ranks = []
    for matrix in matrices:
        wide = matrix.float() if len(matrix) <= matrix.shape[1] else matrix.float().t()
        largest = torch.linalg.eigvalsh(wide @ wide.t())[-1]
        ranks.append(float(wide.square().sum() / largest) if largest > 0 else 1.0)
    return sum(ranks) / len(ranks)


def factorise_layer(layer: Layer, rank: int) -> tuple[FactoredLayer, float]:
    """The truncated SVD of one layer, and the fraction of its energy that it keeps."""
    factored = empty_factors(layer, rank)
    if isinstance(layer, LSTM):
        assert isinstance(factored, LowRankLSTM)
        return factored, fill_by_svd(factored, layer)
    assert isinstance(factored, LowRank)
    u, v, kept = truncated_svd(layer.weight, rank)
    with torch.no_grad():
        factored.u.weight.copy_(u.view_as(factored.u.weight))
        factored.v.weight.copy_(v.view_as(factored.v.weight))
        if isinstance(layer.bias, Tensor) and factored.v.bias is not None:
            factored.v.bias.copy_(layer.bias)
    return factored, kept


def fill_by_svd(factored: LowRankLSTM, layer: LSTM) -> float:
    """Give every gate of a low-rank LSTM layer the truncated SVD of its matrices; return the fraction of energy kept."""
    rank, energy, kept = factored.u_ih.shape[1], 0.0, 0.0
    matrices, factors = gate_matrices(layer), gate_matrices(factored)
    for (side, gate), matrix in matrices.items():
        u, v, share = truncated_svd(matrix, rank)
        factors[f"u_{side}", gate].copy_(u)
        factors[f"v_{side}", gate].copy_(v)
        own = float(matrix.double().square().sum())
        energy, kept = energy + own, kept + share * own
    with torch.no_grad():
        factored.bias.copy_(layer.bias_ih_l0.view_as(factored.bias))
    return kept / energy if energy else 1.0


def random_factors(layer: Layer, rank: int) -> FactoredLayer:
    """A low-rank layer for the same inputs and outputs, on the same device, with random weights."""
    return new_factors(layer, rank, next(layer.parameters()).device)


def empty_factors(layer: Layer, rank: int) -> FactoredLayer:
    """As `random_factors`, with weights and biases that are not initialised: draws no random numbers."""
    return new_factors(layer, rank, torch.device("meta")).to_empty(device=next(layer.parameters()).device)


def new_factors(layer: Layer, rank: int, device: torch.device) -> FactoredLayer:
    first = next(layer.parameters())
    like: dict[str, Any] = {"device": device, "dtype": first.dtype}
    if isinstance(layer, LSTM):
        return LowRankLSTM(layer.input_size, layer.hidden_size, rank, **like).requires_grad_(first.requires_grad)
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        u = nn.Linear(layer.in_features, rank, bias=False, **like)
        return LowRank(u, nn.Linear(rank, layer.out_features, bias, **like)).requires_grad_(layer.weight.requires_grad)
    convolution: Any = type(layer)
    factored = LowRank(
        convolution(layer.in_channels, rank, layer.kernel_size, bias=False, **geometry(layer), **like),
        convolution(rank, layer.out_channels, 1, bias=bias, **like),
    ).requires_grad_(layer.weight.requires_grad)
    last = CHANNELS_LAST.get(layer.weight.ndim)
    if last and not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=last):
        factored.to(memory_format=last)  # type: ignore[call-overload]  # torch's stub lacks this argument
    return factored


def merge_layer(layer: FactoredLayer) -> Layer:
    """The dense layer that computes the same as a low-rank one."""
    if isinstance(layer, LowRankLSTM):
        return merge_lstm(layer)
    weight, bias = layer.weight.detach(), layer.bias
    like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    if isinstance(layer.u, nn.Linear):
        merged: Layer = nn.Linear(layer.u.in_features, len(weight), bias is not None, **like)
    else:
        convolution: Any = type(layer.u)
        merged = convolution(
            layer.u.in_channels, len(weight), layer.u.kernel_size, bias=bias is not None, **geometry(layer.u), **like
        )  # fmt: skip
    with torch.no_grad():
        merged.get_parameter("weight").copy_(weight)
        if bias is not None:
            merged.get_parameter("bias").copy_(bias)
    return merged


def merge_lstm(layer: LowRankLSTM) -> LSTM:
    merged = LSTM(layer.u_ih.shape[2], layer.hidden, device=layer.bias.device, dtype=layer.bias.dtype)
    factors = gate_matrices(layer)
    for (side, gate), matrix in gate_matrices(merged).items():
        matrix.copy_(factors[f"v_{side}", gate] @ factors[f"u_{side}", gate])
    with torch.no_grad():
        merged.bias_ih_l0.copy_(layer.bias.flatten())
    return merged


def factorisation_work(layer: Layer) -> int:
    """The time of a layer's factorisation in arbitrary units, to share layers out evenly."""
    matrices = gate_matrices(layer).values() if isinstance(layer, LSTM) else [layer.weight.flatten(1)]
    return sum(svd_work((matrix.shape[0], matrix.shape[1])) for matrix in matrices)


def geometry(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> dict[str, Any]:
    """The settings of a convolution that decide where its kernel is applied."""
    return {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}


def chain_rule(direction: Tensor, layer: LowRank) -> tuple[Tensor, Tensor]:
    """Map a direction in the space of the dense weight (a gradient, a momentum) to directions of u and v."""
    u, v, matrix = layer.u.weight.detach().flatten(1), layer.v.weight.detach().flatten(1), direction.flatten(1)
    return (v.T @ matrix).view_as(layer.u.weight), (matrix @ u.T).view_as(layer.v.weight)


def replace_all(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    for name, module in layers.items():
        replace(model, name, module)


def replace(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put `layer` in the place of the module `name`; returns the model, or `layer` itself if the name is empty."""
    if not name:
        return layer
    parent, _, child = name.rpartition(".")
    layer.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), child, layer)
    return model
