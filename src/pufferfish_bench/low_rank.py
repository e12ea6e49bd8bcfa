"""Factorise the linear, convolution and LSTM layers of any nn.Module, and merge them back; knows no model and no method.

A weight, unrolled to a matrix W (out, in), becomes two: u (rank, in) comes first and sees the input, v (out, rank) comes
second. For a convolution u has the kernel, the stride and the padding, and v is 1x1. A bias stays on v. Of an LSTM layer each
gate's two matrices are factored on their own.
"""

import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.errors import InputError
from pufferfish_bench.recurrent import LSTM, LowRankLSTM, gate_matrices

Layer = nn.Linear | nn.Conv2d | LSTM


class LowRank(nn.Module):
    """A layer as the product of two thinner ones: v after u, with nothing in between."""

    def __init__(self, u: Layer, v: Layer):
        super().__init__()
        self.u = u
        self.v = v

    def forward(self, x: Tensor) -> Tensor:
        return self.v(self.u(x))


FactoredLayer = LowRank | LowRankLSTM


@dataclass(frozen=True)
class Choice:
    """Which layers are to be factored, at which rank, and why candidates were left alone."""

    ranks: dict[str, int]
    left: dict[str, str]


def rank_of(shape: tuple[int, int], ratio: float) -> int:
    """The paper's one rule: a share of the smaller side of the unrolled matrix."""
    return max(1, int(ratio * min(shape)))


def unrolled(layer: Layer) -> tuple[int, int]:
    """The sides (out, in) of a layer's weight as a matrix; a kernel belongs to the input side. Of an LSTM: of a gate's."""
    if isinstance(layer, LSTM):
        return layer.hidden_size, layer.input_size
    return layer.weight.shape[0], layer.weight[0].numel()


def choose(
    model: nn.Module, *, keep: Sequence[str], first: str | None, rank_ratio: float, ranks: Mapping[str, int | float] | None = None
) -> Choice:
    """Decide the rank of every layer that can be factored, from `first` on (in the model's order), that `keep` does not name.

    `keep` and the keys of `ranks` are names or shell patterns; what `ranks` says goes before the ratio, a whole number
    being a rank and a fraction a ratio of its own.
    """
    if not isinstance(rank_ratio, int | float) or not 0 < rank_ratio <= 1:
        raise InputError(f"rank_ratio={rank_ratio} is outside (0, 1]; the paper uses 0.25")
    keep, ranks = [keep] if isinstance(keep, str) else keep, ranks or {}
    layers = dict(factorable(model))
    if first is not None and first not in layers:
        raise InputError(f"first={first} names no layer that can be factored; there are: {', '.join(layers)}")
    for pattern in [*keep, *ranks]:
        if not fnmatch.filter(layers, pattern):
            raise InputError(f"{pattern!r} in low_rank matches no layer; there are: {', '.join(layers)}")
    uses = shared_uses(model)
    chosen, left = {}, {}
    reached = first is None
    for name, layer in layers.items():
        reached = reached or name == first
        if not reached or any(fnmatch.fnmatch(name, pattern) for pattern in keep):
            continue
        out, inputs = unrolled(layer)
        if type(layer) not in (nn.Linear, nn.Conv2d, LSTM):
            left[name] = f"{type(layer).__name__} may compute something else than the layer it is derived from"
        elif isinstance(layer, nn.Conv2d) and layer.groups != 1:
            left[name] = f"grouped convolution (groups={layer.groups})"
        elif any(uses[parameter] > 1 for parameter in layer.parameters() if parameter.ndim > 1):
            left[name] = "its weight is shared with another layer"
        elif out + inputs >= out * inputs:
            left[name] = f"already thin ({out} x {inputs}): even rank 1 would not be smaller"
        else:
            explicit = [rank for pattern, rank in ranks.items() if fnmatch.fnmatch(name, pattern)]
            asked = explicit[-1] if explicit else rank_ratio
            if not explicit or (isinstance(asked, float) and 0 < asked < 1):
                chosen[name] = rank_of((out, inputs), asked)
            elif isinstance(asked, int) and 1 <= asked <= min(out, inputs):
                chosen[name] = asked
            else:
                raise InputError(
                    f"rank {asked} for {name} is neither a whole number in 1..{min(out, inputs)} nor a ratio below 1"
                )
    for pattern in ranks:
        if not fnmatch.filter(chosen, pattern):
            raise InputError(f"a rank is given for {pattern!r}, but no layer of that name is to be factored")
    return Choice(chosen, left)


def factorable(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The layers of a model that can be factored, by name and in order; those that already are are passed over."""
    inside = {id(part) for layer in model.modules() if isinstance(layer, FactoredLayer) for part in layer.modules()}
    for name, layer in model.named_modules():
        if name and isinstance(layer, Layer) and id(layer) not in inside:  # the model itself has no place to be replaced in
            yield name, layer


def shared_uses(model: nn.Module) -> dict[Tensor, int]:
    """In how many places each parameter is used; a module that stands in two places counts twice."""
    uses: dict[Tensor, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            uses[parameter] = uses.get(parameter, 0) + 1
    return uses


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
    u = nn.Conv2d(
        layer.in_channels, rank, layer.kernel_size, stride=layer.stride, padding=layer.padding,
        dilation=layer.dilation, padding_mode=layer.padding_mode, bias=False, **like,
    )  # fmt: skip
    factored = LowRank(u, nn.Conv2d(rank, layer.out_channels, 1, bias=bias, **like)).requires_grad_(layer.weight.requires_grad)
    channels_last = not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=torch.channels_last)
    return factored.to(memory_format=torch.channels_last) if channels_last else factored


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

    Returns for each layer its rank, the share of energy kept, and the seconds it took.
    """
    done = {}
    for name, rank in ranks.items():
        start = time.perf_counter()
        factored, energy = by_svd(model.get_submodule(name), rank)
        replace(model, name, factored)
        done[name] = {"rank": rank, "energy": energy, "seconds": time.perf_counter() - start}
    return done


def restructure(
    model: nn.Module, ranks: Mapping[str, int], initialise: Callable[[nn.Module], None] | None = None
) -> dict[str, dict[str, float]]:
    """Replace the named layers by factored ones that start at random, in place; `initialise` draws each factor anew."""
    for name, rank in ranks.items():
        factored = thin(model.get_submodule(name), rank)
        if initialise:
            factored.apply(initialise)
        replace(model, name, factored)
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
    weight = (v.weight.flatten(1) @ u.weight.flatten(1)).detach()
    bias = v.bias is not None
    like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    if isinstance(u, nn.Linear):
        merged: Layer = nn.Linear(u.in_features, v.out_features, bias, **like)
    else:
        merged = nn.Conv2d(
            u.in_channels, v.out_channels, u.kernel_size, stride=u.stride, padding=u.padding,
            dilation=u.dilation, padding_mode=u.padding_mode, bias=bias, **like,
        )  # fmt: skip
    with torch.no_grad():
        merged.weight.copy_(weight.view_as(merged.weight))
        if bias:
            merged.bias.copy_(v.bias)
    return merged


def chain_rule(direction: Tensor, layer: LowRank) -> tuple[Tensor, Tensor]:
    """What a direction in the space of the dense weight (a gradient, a momentum) is for u and for v."""
    u, v, matrix = layer.u.weight.detach().flatten(1), layer.v.weight.detach().flatten(1), direction.flatten(1)
    return (v.T @ matrix).view_as(layer.u.weight), (matrix @ u.T).view_as(layer.v.weight)


def replace(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Put `layer` where the module `name` was; returns the model, which is `layer` itself for the empty name."""
    if not name:
        return layer
    parent, _, child = name.rpartition(".")
    layer.train(model.get_submodule(name).training)
    setattr(model.get_submodule(parent), child, layer)
    return model
