"""Factorise the linear, convolution and LSTM layers of any nn.Module, and merge them back; knows no model and no method.

A weight, unrolled to a matrix W (out, in), becomes two: u (rank, in) comes first and sees the input, v (out, rank) comes
second. For a convolution u has the kernel, the stride and the padding, and v has kernel 1. A bias stays on v. Of an LSTM
layer each gate's two matrices are factored on their own.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.errors import InputError
from pufferfish_bench.low_rank_choice import Choice, arguments, check, choose, growth, rank_of
from pufferfish_bench.low_rank_layers import FactoredLayer, Layer, LowRank, unrolled
from pufferfish_bench.recurrent import LSTM, LowRankLSTM, gate_matrices

__all__ = [
    "Choice", "FactoredLayer", "Layer", "LowRank", "arguments", "by_svd", "chain_rule", "choose", "dense", "factorise", "growth",
    "merge", "rank_of", "restructure", "stable_rank", "thin", "truncated", "unrolled",
]  # fmt: skip

# the memory formats of images and volumes, by the number of dimensions of a weight
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def thin(layer: Layer, rank: int) -> FactoredLayer:
    """A factored layer of this shape on the same device, with a random start of its own."""
    first = next(layer.parameters())
    like: dict[str, Any] = {"device": first.device, "dtype": first.dtype}
    if isinstance(layer, LSTM):
        return LowRankLSTM(layer.input_size, layer.hidden_size, rank, **like).requires_grad_(first.requires_grad)
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        u: Layer = nn.Linear(layer.in_features, rank, bias=False, **like)
        return LowRank(u, nn.Linear(rank, layer.out_features, bias, **like)).requires_grad_(layer.weight.requires_grad)
    convolution = type(layer)
    u = convolution(
        layer.in_channels, rank, layer.kernel_size, stride=layer.stride, padding=layer.padding,
        dilation=layer.dilation, padding_mode=layer.padding_mode, bias=False, **like,
    )  # fmt: skip
    v = convolution(rank, layer.out_channels, 1, bias=bias, **like)
    factored = LowRank(u, v).requires_grad_(layer.weight.requires_grad)
    last = CHANNELS_LAST.get(layer.weight.ndim)
    channels_last = last and not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=last)
    return factored.to(memory_format=last) if channels_last else factored


def stable_rank(layer: Layer) -> float:
    """The squared Frobenius norm of a layer's matrix over its squared spectral norm: how many directions it really uses.

    Of an LSTM layer, the mean over its gates' matrices.
    """
    matrices = gate_matrices(layer).values() if isinstance(layer, LSTM) else [layer.weight.detach().flatten(1)]
    ranks = []
    for matrix in matrices:
        tall = matrix.float() if len(matrix) <= matrix.shape[1] else matrix.float().t()
        largest = torch.linalg.eigvalsh(tall @ tall.t())[-1]
        ranks.append(float(tall.square().sum() / largest) if largest > 0 else 1.0)
    return sum(ranks) / len(ranks)


def truncated(weight: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """The best factors u (rank, in), v (out, rank) of a matrix by SVD, and the share of its energy they keep."""
    matrix = weight.detach().flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    try:
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:  # a GPU's solver may fail to converge where LAPACK does not
        if not matrix.isfinite().all():
            raise InputError("the weights are not finite: training had diverged before the factorisation") from None
        U, S, Vh = (factor.to(matrix.device) for factor in torch.linalg.svd(matrix.cpu(), full_matrices=False))
    root = S[:rank].sqrt()
    v = U[:, :rank] * root  # (out, rank): sqrt(S) is shared by both factors
    u = root[:, None] * Vh[:rank]  # (rank, in)
    energy = S.double().square()
    kept = float(energy[:rank].sum() / energy.sum()) if energy.sum() > 0 else 1.0
    return u.to(weight.dtype), v.to(weight.dtype), kept


def by_svd(layer: Layer, rank: int) -> tuple[FactoredLayer, float]:
    """The factored layer nearest to `layer`, and the share of the energy it keeps."""
    factored = thin(layer, rank)
    if isinstance(layer, LSTM):
        return factored, fill_by_svd(factored, layer)
    u, v, kept = truncated(layer.weight, rank)
    with torch.no_grad():
        factored.u.weight.copy_(u.view_as(factored.u.weight))
        factored.v.weight.copy_(v.view_as(factored.v.weight))
        if layer.bias is not None:
            factored.v.bias.copy_(layer.bias)
    return factored, kept


def fill_by_svd(factored: LowRankLSTM, layer: LSTM) -> float:
    """Give every gate of a factored LSTM layer the truncated SVD of its matrices; return the share of energy kept."""
    rank, energy, kept = factored.u_ih.shape[1], 0.0, 0.0
    whole, parts = gate_matrices(layer), gate_matrices(factored)
    for (side, gate), matrix in whole.items():
        u, v, share = truncated(matrix, rank)
        parts[f"u_{side}", gate].copy_(u)
        parts[f"v_{side}", gate].copy_(v)
        own = float(matrix.double().square().sum())
        energy, kept = energy + own, kept + share * own
    with torch.no_grad():
        factored.bias.copy_(layer.bias_ih_l0.view_as(factored.bias))
    return kept / energy if energy else 1.0


def factorise(model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Replace the named layers by their truncated SVD, in place; everything else stays as it is, to the bit.

    Returns for each layer its rank, the share of energy kept, and the seconds it took. All or nothing: if a layer cannot be
    factored, an InputError says so and the model is as it was.
    """
    check(model, ranks)
    done, factored = {}, {}
    for name, rank in ranks.items():
        start = time.perf_counter()
        factored[name], energy = by_svd(model.get_submodule(name), rank)
        done[name] = {"rank": rank, "energy": energy, "seconds": time.perf_counter() - start}
    replace_all(model, factored)
    return done


def restructure(
    model: nn.Module, ranks: Mapping[str, int], initialise: Callable[[nn.Module], None] | None = None
) -> dict[str, dict[str, float]]:
    """Replace the named layers by factored ones that start at random, in place; `initialise` draws each factor anew.

    All or nothing, as `factorise`.
    """
    check(model, ranks)
    factored = {}
    for name, rank in ranks.items():
        factored[name] = thin(model.get_submodule(name), rank)
        if initialise:
            factored[name].apply(initialise)
    replace_all(model, factored)
    return {name: {"rank": rank} for name, rank in ranks.items()}


def merge(model: nn.Module) -> nn.Module:
    """Replace every factored layer by the dense layer that computes the same, in place; returns the model."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, FactoredLayer):
            model = replace(model, name, dense(layer))
    return model


def dense(layer: FactoredLayer) -> Layer:
    """The dense layer that computes what a factored one computes."""
    if isinstance(layer, LowRankLSTM):
        whole = LSTM(layer.u_ih.shape[2], layer.hidden, device=layer.bias.device, dtype=layer.bias.dtype)
        parts = gate_matrices(layer)
        for (side, gate), matrix in gate_matrices(whole).items():
            matrix.copy_(parts[f"v_{side}", gate] @ parts[f"u_{side}", gate])
        with torch.no_grad():
            whole.bias_ih_l0.copy_(layer.bias.flatten())
        return whole
    u, v = layer.u, layer.v
    weight = layer.weight.detach()
    bias = v.bias is not None
    like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    if isinstance(u, nn.Linear):
        merged: Layer = nn.Linear(u.in_features, v.out_features, bias, **like)
    else:
        merged = type(u)(
            u.in_channels, v.out_channels, u.kernel_size, stride=u.stride, padding=u.padding,
            dilation=u.dilation, padding_mode=u.padding_mode, bias=bias, **like,
        )  # fmt: skip
    with torch.no_grad():
        merged.weight.copy_(weight)
        if bias:
            merged.bias.copy_(v.bias)
    return merged


def chain_rule(direction: Tensor, layer: LowRank) -> tuple[Tensor, Tensor]:
    """What a direction in the space of the dense weight (a gradient, a momentum) is for u and for v."""
    u, v, matrix = layer.u.weight.detach().flatten(1), layer.v.weight.detach().flatten(1), direction.flatten(1)
    return (v.T @ matrix).view_as(layer.u.weight), (matrix @ u.T).view_as(layer.v.weight)


def replace_all(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    for name, layer in layers.items():
        replace(model, name, layer)


def replace(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put `layer` where the module `name` was; returns the model, which is `layer` itself for the empty name."""
    if not name:
        return layer
    parent, _, child = name.rpartition(".")
    layer.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), child, layer)
    return model
