"""Factorise layers of any nn.Module, and merge them again.

A weight, as a matrix W (out, in), becomes two: u (rank, in) is applied first, then v (out, rank). For a convolution, u has the
kernel, the stride and the padding, and v has kernel size 1. The bias stays in v. In an LSTM layer, the two matrices of each gate
are factorised separately; in an attention layer, the projections of queries, keys, values and outputs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from pufferfish_bench.lowrank.choice import check
from pufferfish_bench.lowrank.kinds import FactoredLayer, get_layer, kind_of_factored, known_kind, matrix_shapes
from pufferfish_bench.lowrank.layers import LowRank
from pufferfish_bench.lowrank.random_energy import random_layer_energy
from pufferfish_bench.lowrank.svd import svd_work, truncated_svd


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
    for name, layer in list(factored_layers(model)):
        model = replace(model, name, merge_layer(layer))
    return model


def factored_layers(model: nn.Module) -> Iterator[tuple[str, FactoredLayer]]:
    """The low-rank layers of a model, without those that are parts of others."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, FactoredLayer) and id(module) not in inside:
            inside.update(map(id, module.modules()))
            yield name, module


def stable_rank(layer: nn.Module) -> float:
    """The squared Frobenius norm of a layer's matrix divided by its squared spectral norm: between 1 and its rank.

    For a layer with several matrices, such as an LSTM: their mean.
    """
    ranks = []
    for tensor in known_kind(layer).matrices(layer).values():
        matrix = tensor.flatten(1)
        wide = matrix.float() if len(matrix) <= matrix.shape[1] else matrix.float().t()
        largest = torch.linalg.eigvalsh(wide @ wide.t())[-1]
        ranks.append(float(wide.square().sum() / largest) if largest > 0 else 1.0)
    return sum(ranks) / len(ranks)


def factorise_layer(layer: nn.Module, rank: int) -> tuple[FactoredLayer, float]:
    """The truncated SVD of one layer, and the fraction of its energy that it keeps."""
    factored, kind = empty_factors(layer, rank), known_kind(layer)
    factors, shares = kind.factors(factored), []
    for name, matrix in kind.matrices(layer).items():
        u, v, share = truncated_svd(matrix, rank)
        for factor, computed in zip(factors[name], (u, v), strict=True):
            factor.copy_(computed.view_as(factor))
        shares.append(share)
    kind.copy_rest(layer, factored)
    return factored, shares[0] if len(shares) == 1 else mean_share(shares, kind.matrices(layer).values())


def mean_share(shares: Iterable[float], matrices: Iterable[Tensor]) -> float:
    """The fraction of energy kept of several matrices, from those of each; matrices without values, on meta, count alike."""
    energies = [1.0 if matrix.is_meta else float(matrix.double().square().sum()) for matrix in matrices]
    kept = sum(share * energy for share, energy in zip(shares, energies, strict=True))
    return kept / sum(energies) if sum(energies) else 1.0


def random_factors(layer: nn.Module, rank: int) -> FactoredLayer:
    """A low-rank layer for the same inputs and outputs, on the same device, with random weights."""
    return new_factors(layer, rank, next(layer.parameters()).device)


def empty_factors(layer: nn.Module, rank: int) -> FactoredLayer:
    """As `random_factors`, with weights and biases that are not initialised: draws no random numbers."""
    return new_factors(layer, rank, torch.device("meta")).to_empty(device=next(layer.parameters()).device)


def new_factors(layer: nn.Module, rank: int, device: torch.device) -> FactoredLayer:
    kind = known_kind(layer)
    first = next(iter(kind.origins(layer).values()))
    weight = layer.get_parameter(first)
    factored = kind.new(layer, rank, {"device": device, "dtype": weight.dtype}).requires_grad_(weight.requires_grad)
    assert isinstance(factored, FactoredLayer)
    return factored


def merge_layer(layer: FactoredLayer) -> nn.Module:
    """The dense layer that computes the same as a low-rank one."""
    kind, merged = kind_of_factored(layer), empty_dense(layer)
    factors = kind.factors(layer)
    for name, matrix in kind.matrices(merged).items():
        u, v = factors[name]
        matrix.copy_((v.flatten(1) @ u.flatten(1)).view_as(matrix))
    kind.restore_rest(layer, merged)
    return merged


def empty_dense(layer: FactoredLayer) -> nn.Module:
    """The dense layer that a low-rank one replaces, with weights that are not initialised: draws no random numbers."""
    first = next(layer.parameters())
    like = {"device": torch.device("meta"), "dtype": first.dtype}
    return kind_of_factored(layer).empty_dense(layer, like).to_empty(device=first.device)


def factorisation_work(layer: nn.Module) -> int:
    """The time of a layer's factorisation in arbitrary units, to share layers out evenly."""
    return sum(svd_work(shape) for shape in matrix_shapes(layer).values())


def chain_rule(direction: Tensor, layer: LowRank) -> tuple[Tensor, Tensor]:
    """Map a direction in the space of the dense weight (a gradient, a momentum) to directions of u and v."""
    u, v, matrix = layer.u.weight.detach().flatten(1), layer.v.weight.detach().flatten(1), layer.as_matrix(direction)
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
