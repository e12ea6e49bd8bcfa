"""Decides which layers of a model are factorised and at which rank; refuses what cannot work before anything is changed."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.kinds import (
    NAMES,
    FactoredLayer,
    get_layer,
    kind_of,
    known_kind,
    matrix_shape,
    weights_before_and_after,
)

EXAMPLE = "low_rank: {keep: [conv1, head], first: null, rank_ratio: 0.25, ranks: null}"
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
NAMED = 4  # layers or parameters that a message lists by name; the rest are counted


@dataclass(frozen=True)
class Choice:
    """The layers to factorise."""

    ranks: dict[str, int]  # layer name -> rank
    left: dict[str, str]  # name of a layer that stays dense -> why


def rank_of(shape: tuple[int, int], ratio: float) -> int:
    """The paper's rule: a fraction of the smaller side of a layer's matrix, at least 1."""
    return max(1, int(ratio * min(shape)))


def choose(
    model: nn.Module,
    *,
    keep: Sequence[str] | Mapping[str, str],
    first: str | None,
    rank_ratio: float,
    ranks: Mapping[str, int | float] | None = None,
) -> Choice:
    """Choose the layers to factorise and their ranks; changes nothing.

    keep: names or shell patterns of layers that stay dense, for example ["conv1", "head.*"]; [] keeps none. Or a mapping from
        names to reasons, as `resolve` returns it: `Choice.left` then has these layers too.
    first: name of the first layer to factorise; layers before it (in the order of `named_modules`) stay dense. None: all.
    rank_ratio: rank of a layer divided by the smaller side of its matrix; the paper uses 0.25.
    ranks: ranks for single layers, by name or shell pattern: an integer is a rank, a fraction is a ratio.

    `Choice.left` says why other layers with matrices stay dense. Embeddings are not listed, because a look-up is not a
    matrix product; neither are the layers in a list `keep` and those that are already low-rank.
    """
    if "auto" in (keep, first):
        raise InputError("low_rank has auto, which needs a sample input of the model: call lowrank.resolve before choose")
    reasons = {str(name): str(reason) for name, reason in keep.items()} if isinstance(keep, Mapping) else {}
    keep, ranks = checked([] if isinstance(keep, Mapping) else keep, rank_ratio, ranks)
    layers, others = dict(factorable(model)), dict(with_other_matrices(model))
    if not layers:
        raise nothing_to_factor(model, others)
    first = None if first is None else str(first)
    factored = [name for name, layer in model.named_modules() if isinstance(layer, FactoredLayer)]
    check_names(list(layers), [*others, *factored], first=first, names=reasons, patterns=[*keep, *ranks])
    uses = shared_uses(model)
    chosen: dict[str, int] = {}
    left: dict[str, str] = {}
    reached = first is None
    for name, _ in model.named_modules():
        reached = reached or name == first
        if name in reasons:
            left[name] = reasons[name]
        elif not reached or any(fnmatch.fnmatch(name, pattern) for pattern in keep):
            continue
        elif name in others:
            left[name] = others[name]
        elif name in layers:
            if reason := unfit(name, layers[name], uses) or too_thin(layers[name]):
                left[name] = reason
            else:
                given = [rank for pattern, rank in ranks.items() if fnmatch.fnmatch(name, pattern)]
                shape = matrix_shape(layers[name])
                chosen[name] = explicit_rank(name, shape, given[-1]) if given else rank_of(shape, rank_ratio)
    check_ranks_used(ranks, Choice(chosen, left), factored)
    return Choice(chosen, left)


def check_names(
    layers: Sequence[str], others: Sequence[str], *, first: str | None, names: Iterable[str], patterns: Iterable[str]
) -> None:  # fmt: skip
    """Refuse settings that name no layer; `layers` can be factorised, `others` cannot or already are."""
    there = ", ".join(layers)
    if first is not None and first not in layers:
        raise InputError(f"first={first} is not a layer that can be factorised; these are: {there}")
    for name in names:
        if name not in {*layers, *others}:
            raise InputError(f"{name!r} in low_rank.keep is no layer; the layers are: {there}")
    for pattern in patterns:
        if not fnmatch.filter([*layers, *others], pattern):
            raise InputError(f"{pattern!r} in low_rank matches no layer; the layers are: {there}")


def check_ranks_used(ranks: Iterable[str], choice: Choice, factored: Sequence[str]) -> None:
    """Refuse a rank that is given for layers none of which is factorised."""
    for pattern in ranks:
        if not fnmatch.filter(choice.ranks, pattern):
            why = "; ".join(f"{name}: {choice.left[name]}" for name in fnmatch.filter(choice.left, pattern))
            why = why or "; ".join(f"{name} is already low-rank" for name in fnmatch.filter(factored, pattern))
            raise InputError(f"a rank is given for {pattern!r}, but no layer of that name is factorised{why and f' ({why})'}")


def arguments(layers: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A model's `low_rank` settings as arguments of `choose`; an InputError if they are missing or incomplete."""
    if layers is None:
        raise InputError(f"the model has no low_rank settings, which say what to factorise: add {EXAMPLE} to its config")
    allowed, required = {"keep", "first", "rank_ratio", "ranks"}, {"keep", "first", "rank_ratio"}
    if not isinstance(layers, Mapping) or not required <= set(layers) <= allowed:
        raise InputError(f"low_rank={layers} must have the settings of this example and no others: {EXAMPLE}")
    return layers


def checked(
    keep: Sequence[str], rank_ratio: float, ranks: Mapping[str, int | float] | None
) -> tuple[list[str], dict[str, int | float]]:
    """`keep` and `ranks` with all names as strings (a layer of nn.Sequential may be given as a number), after checking them."""
    if isinstance(rank_ratio, bool) or not isinstance(rank_ratio, int | float) or not 0 < rank_ratio <= 1:
        raise InputError(f"rank_ratio={rank_ratio} is outside (0, 1]; the paper uses 0.25")
    if not isinstance(keep, Sequence):
        raise InputError(f"keep={keep} must be a list of layer names or patterns, such as [conv1, head]; [] keeps none")
    if not isinstance(ranks, Mapping | None):
        raise InputError(f"ranks={ranks} must give a rank or a ratio by layer name or pattern, such as {{conv2: 64}}, or be null")
    names = [keep] if isinstance(keep, str) else [str(name) for name in keep]
    return names, {str(name): rank for name, rank in (ranks or {}).items()}


def explicit_rank(name: str, shape: tuple[int, int], given: float) -> int:
    """A layer's rank from its entry in `ranks`: a rank or a ratio."""
    if isinstance(given, float) and 0 < given < 1:
        return rank_of(shape, given)
    if is_rank(given, shape):
        return int(given)
    raise InputError(f"rank {given} for {name} is neither an integer in 1..{min(shape)} nor a ratio below 1")


def is_rank(rank: object, shape: tuple[int, int]) -> bool:
    return isinstance(rank, Integral) and not isinstance(rank, bool) and 1 <= int(rank) <= min(shape)


def check(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Raise an InputError for a layer that cannot be factorised at its rank; the message says what is allowed."""
    uses = shared_uses(model)
    inside = inside_factored(model)
    for name, rank in ranks.items():
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            there = ", ".join(dict(factorable(model))) or "none that can be factorised"
            raise InputError(f"the model has no layer {name!r}; its layers are: {there}") from None
        if id(layer) in inside:
            raise InputError(f"{name or 'the model'} is already low-rank; merge() makes it dense again")
        if layer is model:
            raise InputError(unwrapped(model))
        reason = f"only {NAMES} can be" if kind_of(layer) is None else unfit(name, layer, uses)
        if reason:
            raise InputError(f"{name} ({kind_name(layer)}) cannot be factorised: {reason}")
        if not is_rank(rank, matrix_shape(layer)):
            out, inputs = matrix_shape(layer)
            raise InputError(f"rank {rank} for {name} is not an integer in 1..{min(out, inputs)}; its matrix is {out} x {inputs}")


def unfit(name: str, layer: nn.Module, uses: Mapping[Tensor, Sequence[str]]) -> str | None:
    """Why a layer cannot be factorised without changing what the model computes; None if it can."""
    kind = known_kind(layer)
    if not kind.exact(layer):
        parametrised = ": its weight is parametrised" * is_parametrized(layer)
        return f"{type(layer).__module__}.{type(layer).__qualname__} may not compute the same as its base class{parametrised}"
    reason = kind.unfit(layer)
    if reason:
        return reason
    own = dict(layer.named_parameters())
    if not own.keys() >= set(kind.origins(layer).values()):
        return "its weight is computed from other parameters (weight_norm, spectral_norm or a mask)"
    inside = {name, *(f"{name}.{part}" for part, _ in layer.named_modules() if part)}
    elsewhere = [place for parameter in own.values() if parameter.ndim > 1 for place in uses[parameter] if place not in inside]
    if elsewhere:
        return f"its weight is shared with another layer ({few(list(dict.fromkeys(elsewhere)))})"
    return None


def too_thin(layer: nn.Module) -> str | None:
    out, inputs = matrix_shape(layer)
    if out + inputs >= out * inputs:
        return f"already thin: even rank 1 of {out} x {inputs} would not be smaller"
    return None


def factorable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a model whose kind can be factorised and that are not yet, in order; not the parts of such layers."""
    inside = inside_factored(model)
    for name, layer in model.named_modules():
        if kind_of(layer) is not None and id(layer) not in inside:
            inside.update(id(part) for part in layer.modules())
            if name:  # the model itself cannot be replaced in a parent
                yield name, layer


def inside_factored(model: nn.Module) -> set[int]:
    """The ids of all low-rank layers and of their parts."""
    return {id(part) for layer in model.modules() if isinstance(layer, FactoredLayer) for part in layer.modules()}


def with_other_matrices(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(name, reason) of the modules with matrices that cannot be factorised; the name "" is the model itself."""
    within = inside_factored(model)
    within |= {id(part) for layer in model.modules() if kind_of(layer) is not None for part in layer.modules()}
    ignored = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
    for name, module in model.named_modules():
        if id(module) in within or isinstance(module, ignored):
            continue
        matrices = [own for own, parameter in module.named_parameters(recurse=False) if is_matrix(parameter)]
        if matrices:
            known = "; of recurrent layers, only nn.LSTM has a low-rank form here" * isinstance(module, RECURRENT)
            kind, held = kind_name(module), few(matrices)
            if kind.startswith("nn."):
                yield name, f"{kind} cannot be factorised (it contains {held}){known}"
            else:  # any code may use it: for a matrix product, or as a positional embedding, which is added
                yield name, f"{kind} holds {held} itself, not as the weight of a known kind of layer{known}"


def is_matrix(parameter: Tensor) -> bool:
    return not is_lazy(parameter) and sum(side > 1 for side in parameter.shape) > 1


def shared_uses(model: nn.Module) -> dict[Tensor, list[str]]:
    """The names of the modules that use each parameter; a module that occurs twice has two names."""
    uses: dict[Tensor, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            uses.setdefault(parameter, []).append(name)
    return uses


def growth(model: nn.Module, ranks: Mapping[str, int]) -> str | None:
    """A warning about the layers that factorisation does not make smaller; None if there are none."""
    size = after = counting.parameters(model)
    larger = []
    for name, rank in ranks.items():
        found = get_layer(model, name)
        whole, factors = weights_before_and_after(found, rank)
        if factors >= whole:
            larger.append(name)
        if next(found.parameters()).requires_grad:
            after += factors - whole
    if not larger:
        return None
    return (
        f"factorisation does not make {len(larger)} of {len(ranks)} layers smaller ({few(larger)}): "
        f"the model has {after:,} parameters instead of {size:,}; a lower rank_ratio, or lower ranks, would shrink them"
    )


def nothing_to_factor(model: nn.Module, others: Mapping[str, str]) -> InputError:
    if any(isinstance(layer, FactoredLayer) for layer in model.modules()):
        return InputError("all layers of the model that can be factorised are already low-rank; merge() makes them dense again")
    if kind_of(model) is not None:
        return InputError(unwrapped(model))
    why = "; ".join(f"{name or 'the model'}: {reason}" for name, reason in others.items())
    return InputError(f"{kind_name(model)} has no layer that can be factorised{why and f' ({why})'}; only {NAMES} can be")


def unwrapped(model: nn.Module) -> str:
    return f"the model itself ({kind_name(model)}) cannot be replaced in place: wrap it, for example in nn.Sequential"


def kind_name(module: nn.Module) -> str:
    """A module's type, with the prefix nn. for torch's own."""
    from_torch = type(module).__module__.startswith("torch.nn.")
    return f"{'nn.' * from_torch}{type(module).__name__}"


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
