"""Which layers of a model are factored and at which rank; what speaks against it is said before anything is changed."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pufferfish_bench import counting
from pufferfish_bench.errors import InputError
from pufferfish_bench.low_rank_layers import Convolution, FactoredLayer, Layer, unrolled, weights_before_and_after
from pufferfish_bench.recurrent import LSTM

KINDS = "nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d and pufferfish_bench.recurrent.LSTM"
EXAMPLE = "low_rank: {keep: [conv1, head], first: null, rank_ratio: 0.25, ranks: null}"
NAMED = 4  # layers or parameters that a sentence names; more are counted


@dataclass(frozen=True)
class Choice:
    """Which layers are to be factored, at which rank, and why others were left alone."""

    ranks: dict[str, int]
    left: dict[str, str]


def rank_of(shape: tuple[int, int], ratio: float) -> int:
    """The paper's one rule: a share of the smaller side of the unrolled matrix."""
    return max(1, int(ratio * min(shape)))


def choose(
    model: nn.Module, *, keep: Sequence[str], first: str | None, rank_ratio: float, ranks: Mapping[str, int | float] | None = None
) -> Choice:
    """Decide the rank of every layer that can be factored, from `first` on (in the model's order), that `keep` does not name.

    `keep` and the keys of `ranks` are names or shell patterns; what `ranks` says goes before the ratio, a whole number
    being a rank and a fraction a ratio of its own. The choice's `left` also names every module that holds matrices of its
    own and is not factored; embeddings are not named, for a look-up is no product, nor are layers factored before.
    """
    keep, ranks = checked(keep, rank_ratio, ranks)
    layers, others = dict(factorable(model)), dict(with_other_matrices(model))
    if not layers:
        raise nothing_to_factor(model, others)
    first = None if first is None else str(first)
    if first is not None and first not in layers:
        raise InputError(f"first={first} names no layer that can be factored; there are: {', '.join(layers)}")
    factored = [name for name, layer in model.named_modules() if isinstance(layer, FactoredLayer)]
    for pattern in [*keep, *ranks]:
        if not fnmatch.filter([*layers, *others, *factored], pattern):
            raise InputError(f"{pattern!r} in low_rank matches no layer; there are: {', '.join(layers)}")
    uses = shared_uses(model)
    chosen, left = {}, {}
    reached = first is None
    for name, module in model.named_modules():
        reached = reached or name == first
        if not reached or any(fnmatch.fnmatch(name, pattern) for pattern in keep):
            continue
        if name in others:
            left[name] = others[name]
        elif name in layers:
            reason = unfit(module, uses) or thin_already(module)
            if reason:
                left[name] = reason
            else:
                explicit = [rank for pattern, rank in ranks.items() if fnmatch.fnmatch(name, pattern)]
                chosen[name] = (
                    asked_rank(name, unrolled(module), explicit[-1]) if explicit else rank_of(unrolled(module), rank_ratio)
                )
    for pattern in ranks:
        if not fnmatch.filter(chosen, pattern):
            why = "; ".join(f"{name}: {left[name]}" for name in fnmatch.filter(left, pattern))
            why = why or "; ".join(f"{name} is factored already" for name in fnmatch.filter(factored, pattern))
            raise InputError(f"a rank is given for {pattern!r}, but no layer of that name is to be factored{why and f' ({why})'}")
    return Choice(chosen, left)


def arguments(layers: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A model's `low_rank` settings as `choose` takes them, if there are any and they are complete."""
    if layers is None:
        raise InputError(f"the model has no low_rank, which says what to factor: add {EXAMPLE} to its config")
    allowed, required = {"keep", "first", "rank_ratio", "ranks"}, {"keep", "first", "rank_ratio"}
    if not isinstance(layers, Mapping) or not required <= set(layers) <= allowed:
        raise InputError(f"low_rank={layers} must have the settings of this example and no others: {EXAMPLE}")
    return layers


def checked(
    keep: Sequence[str], rank_ratio: float, ranks: Mapping[str, int | float] | None
) -> tuple[list[str], dict[str, int | float]]:
    """`keep` and `ranks` with names that are words (a layer of nn.Sequential may be given as a number), if all makes sense."""
    if isinstance(rank_ratio, bool) or not isinstance(rank_ratio, int | float) or not 0 < rank_ratio <= 1:
        raise InputError(f"rank_ratio={rank_ratio} is outside (0, 1]; the paper uses 0.25")
    if not isinstance(keep, Sequence):
        raise InputError(f"keep={keep} must be a list of layer names or patterns, such as [conv1, head]; [] keeps none")
    if not isinstance(ranks, Mapping | None):
        raise InputError(f"ranks={ranks} must give a rank or a ratio by layer name or pattern, such as {{conv2: 64}}, or be null")
    names = [keep] if isinstance(keep, str) else [str(name) for name in keep]
    return names, {str(name): rank for name, rank in (ranks or {}).items()}


def asked_rank(name: str, shape: tuple[int, int], asked: float) -> int:
    """A layer's rank by what is asked for it: a rank, or a ratio of its own."""
    if isinstance(asked, float) and 0 < asked < 1:
        return rank_of(shape, asked)
    if is_rank(asked, shape):
        return int(asked)
    raise InputError(f"rank {asked} for {name} is neither a whole number in 1..{min(shape)} nor a ratio below 1")


def is_rank(rank: object, shape: tuple[int, int]) -> bool:
    return isinstance(rank, Integral) and not isinstance(rank, bool) and 1 <= rank <= min(shape)


def check(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Refuse ranks that the model cannot be factored at; the sentence names the layer and what is allowed."""
    uses = shared_uses(model)
    inside = inside_factored(model)
    for name, rank in ranks.items():
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            there = ", ".join(dict(factorable(model))) or "none that can be factored"
            raise InputError(f"the model has no layer {name!r}; there are: {there}") from None
        if id(layer) in inside:
            raise InputError(f"{name or 'the model'} is factored already; merge() makes it dense again")
        if layer is model:
            raise InputError(unwrapped(model))
        reason = unfit(layer, uses) if isinstance(layer, Layer) else f"it is no layer that can be, which are {KINDS}"
        if reason:
            raise InputError(f"{name} ({kind(layer)}) cannot be factored: {reason}")
        if not is_rank(rank, unrolled(layer)):
            out, inputs = unrolled(layer)
            raise InputError(
                f"rank {rank} for {name} is not a whole number in 1..{min(out, inputs)}; its matrix is {out} x {inputs}"
            )


def unfit(layer: Layer, uses: Mapping[Tensor, int]) -> str | None:
    """Why a layer cannot be factored without changing what the model computes; None if it can."""
    if type(layer) is nn.modules.linear.NonDynamicallyQuantizableLinear:
        return "nn.MultiheadAttention reads its weight and does not call it"
    if type(layer) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, LSTM):
        return f"{type(layer).__name__} may compute something else than the layer it is derived from"
    if isinstance(layer, Convolution) and layer.groups != 1:
        return f"grouped convolution (groups={layer.groups})"
    if not isinstance(layer, LSTM) and "weight" not in layer._parameters:
        return "its weight is computed from other parameters (weight_norm, spectral_norm or a mask)"
    if any(uses[parameter] > 1 for parameter in layer.parameters() if parameter.ndim > 1):
        return "its weight is shared with another layer"
    return None


def thin_already(layer: Layer) -> str | None:
    out, inputs = unrolled(layer)
    if out + inputs >= out * inputs:
        return f"already thin ({out} x {inputs}): even rank 1 would not be smaller"
    return None


def factorable(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The layers of a model that can be factored, by name and in order; those that already are are passed over."""
    inside = inside_factored(model)
    for name, layer in model.named_modules():
        if name and isinstance(layer, Layer) and id(layer) not in inside:  # the model itself has no place to be replaced in
            yield name, layer


def inside_factored(model: nn.Module) -> set[int]:
    """The identities of all factored layers and of their parts."""
    return {id(part) for layer in model.modules() if isinstance(layer, FactoredLayer) for part in layer.modules()}


def with_other_matrices(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The modules that hold matrices of their own which nothing here factors, by name ("" is the model), with the reason."""
    within = inside_factored(model)
    within |= {id(part) for layer in model.modules() if isinstance(layer, Layer) for part in layer.modules()}
    spared = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
    for name, module in model.named_modules():
        if id(module) in within or isinstance(module, spared):
            continue
        matrices = [own for own, parameter in module.named_parameters(recurse=False) if is_matrix(parameter)]
        if matrices:
            yield name, f"{kind(module)} is not factored (it holds {few(matrices)})"


def is_matrix(parameter: Tensor) -> bool:
    return not is_lazy(parameter) and sum(side > 1 for side in parameter.shape) > 1


def shared_uses(model: nn.Module) -> dict[Tensor, int]:
    """In how many places each parameter is used; a module that stands in two places counts twice."""
    uses: dict[Tensor, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            uses[parameter] = uses.get(parameter, 0) + 1
    return uses


def growth(model: nn.Module, ranks: Mapping[str, int]) -> str | None:
    """A sentence about the layers that factoring does not make smaller; None if there are none."""
    size = after = counting.parameters(model)
    larger = []
    for name, rank in ranks.items():
        layer = model.get_submodule(name)
        whole, factors = weights_before_and_after(layer, rank)
        if factors >= whole:
            larger.append(name)
        if next(layer.parameters()).requires_grad:
            after += factors - whole
    if not larger:
        return None
    return (
        f"factoring does not make {len(larger)} of {len(ranks)} layers smaller ({few(larger)}): "
        f"the net has {after:,} parameters instead of {size:,}; a lower rank_ratio, or lower ranks, would shrink them"
    )


def nothing_to_factor(model: nn.Module, others: Mapping[str, str]) -> InputError:
    if any(isinstance(layer, FactoredLayer) for layer in model.modules()):
        return InputError("all layers of the model that can be factored are factored already; merge() makes them dense again")
    if isinstance(model, Layer):
        return InputError(unwrapped(model))
    why = "; ".join(f"{name or 'the model'}: {reason}" for name, reason in others.items())
    return InputError(f"{kind(model)} has no layer that can be factored{why and f' ({why})'}; those are {KINDS}")


def unwrapped(model: nn.Module) -> str:
    return f"the model itself ({kind(model)}) has no place to be replaced in: wrap it, for example in nn.Sequential"


def kind(module: nn.Module) -> str:
    """A module's type; torch's own are told from others of the same name."""
    torchs = type(module).__module__.startswith("torch.nn.")
    return f"{'nn.' * torchs}{type(module).__name__}"


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
