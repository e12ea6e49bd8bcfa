"""Decides by itself which layers stay dense, for `keep: auto` and `first: auto`. Uses a cost model and never a clock.

The decision is a function of shapes only, so that all ranks, a resumed run and another machine decide alike. It uses the roofline
model: a kernel computes and moves numbers at the same time, and the slower of the two decides. The cost of a kernel is

    cost = max(MACs, BALANCE x numbers moved)    in MACs

A dense layer is one kernel that reads its inputs and writes its outputs. A factored layer is two: the first factor writes what
the second one reads. Weights are not counted, because a whole batch shares them. BALANCE is how many multiply-accumulates a
processor computes in the time in which it moves one float32 number to or from memory. A V100 computes 7.8e12 MACs and moves
2.2e11 numbers in a second: 35. Current CPUs have 20 to 60. A backward pass costs about twice the forward pass in both terms,
which does not change a comparison.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal

from torch import Tensor, nn

from pufferfish_bench.lowrank import one_pass
from pufferfish_bench.lowrank.choice import Choice, arguments, choose, factorable, inside_factored, with_other_matrices
from pufferfish_bench.lowrank.kinds import get_layer, known_kind, matrix_shapes, weights_before_and_after

AUTO = "auto"
UNCALLED = "not called in the forward pass: unused, or other code reads its weight"
BALANCE = 35  # MACs in the time of moving one number: a V100 in float32


@dataclass(frozen=True)
class Call:
    """One call of a layer: how many vectors each of its matrices is multiplied with, and the numbers that go in and out."""

    vectors: Mapping[str, int]
    inputs: int
    outputs: int


def is_auto(low_rank: Any) -> bool:
    """Whether `low_rank` settings leave anything to `resolve`."""
    return isinstance(low_rank, Mapping) and AUTO in (low_rank.get("keep"), low_rank.get("first"))


def resolve(model: nn.Module, sample: Sequence[Any], low_rank: Mapping[str, Any]) -> Mapping[str, Any]:
    """`low_rank` settings without the word auto: arguments of `choose`, in which `keep` maps layers to the reasons why they stay.

    `sample` holds the positional arguments of one forward pass; tensors may be on any device. The model is called once, in
    evaluation mode, and is not changed. Settings without `auto` are returned as they are.
    """
    return explicit(model, sample, **arguments(low_rank)) if is_auto(low_rank) else low_rank


def explicit(
    model: nn.Module,
    sample: Sequence[Any],
    *,
    keep: Literal["auto"] | Sequence[str] | Mapping[str, str],
    first: str | None,
    rank_ratio: float,
    ranks: Mapping[str, int | float] | None = None,
) -> dict[str, Any]:
    """As `resolve`, with the settings as arguments.

    keep: auto: the first and the last weight layer in the order of execution stay dense, layers that are not called, and layers
        whose factors would not be smaller; a rank in `ranks` overrides the latter.
    first: auto: the early layers, in the order of execution, stay dense up to the first one that costs less when factored; none
        of them if no layer does.
    """
    settings: dict[str, Any] = {"rank_ratio": rank_ratio, "ranks": ranks}
    begin = None if first == AUTO else first
    # ranks may name layers that will be kept: `choose` with the explicit settings reports those that name nothing
    chosen = choose(model, keep=[] if keep == AUTO else keep, first=begin, **settings)
    calls = executed(model, sample)
    kept = ends_uncalled_and_thin(model, calls, chosen, ranks or {}) if keep == AUTO else as_reasons(model, keep)
    if first == AUTO:
        candidates = {name: rank for name, rank in chosen.ranks.items() if name not in kept}
        kept |= slower_in_front(model, calls, candidates)
    return {**settings, "keep": kept, "first": begin}


def as_reasons(model: nn.Module, keep: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The layers that names or patterns match, with a reason."""
    if isinstance(keep, Mapping):
        return dict(keep)
    patterns = [keep] if isinstance(keep, str) else [str(pattern) for pattern in keep]
    names = [*dict(factorable(model)), *dict(with_other_matrices(model))]
    return {name: "in low_rank.keep" for name in names if any(fnmatch(name, pattern) for pattern in patterns)}


def ends_uncalled_and_thin(
    model: nn.Module, calls: Mapping[str, list[tuple[int, Call | None]]], chosen: Choice, ranks: Mapping[str, int | float]
) -> dict[str, str]:
    """The layers that stay dense: the first and the last weight layer, those that are not called, those that are too thin."""
    kept = {}
    if calls:
        begin = min(calls, key=lambda name: calls[name][0][0])
        end = max(calls, key=lambda name: calls[name][-1][0])
        kept = {end: "the last weight layer", begin: "the first weight layer"}
    for name, rank in chosen.ranks.items():
        if name not in calls:
            kept[name] = UNCALLED
        dense, factors = weights_before_and_after(get_layer(model, name), rank)
        if factors >= dense and not any(fnmatch(name, str(pattern)) for pattern in ranks):
            kept.setdefault(name, f"too thin to gain: {factors:,} weights at rank {rank} instead of {dense:,}")
    return {name: kept[name] for name in chosen.ranks if name in kept}


def slower_in_front(
    model: nn.Module, calls: Mapping[str, list[tuple[int, Call | None]]], ranks: Mapping[str, int]
) -> dict[str, str]:
    """The layers to be factorised, in the order of execution, up to the first one that costs less when factored.

    Empty if none does, as in tiny networks: then only parameters are saved, in all layers alike.
    """
    kept: dict[str, str] = {}
    for name in sorted((name for name in ranks if name in calls), key=lambda name: calls[name][0][0]):
        dense, factored = costs(get_layer(model, name), ranks[name], [call for _, call in calls[name] if call])
        if factored < dense:
            return kept
        kept[name] = (
            f"an early layer that is not cheaper when factored: an estimated cost of {factored:,} MACs instead of {dense:,}"
        )
    return {}


def kernel(macs: int, moved: int) -> int:
    """The cost of a kernel."""
    return max(macs, BALANCE * moved)


def costs(layer: nn.Module, rank: int, calls: Sequence[Call]) -> tuple[int, int]:
    """The cost of these calls of a layer, dense and factored."""
    dense = factored = 0
    for call in calls:
        sizes = [(call.vectors[name], out, inputs) for name, (out, inputs) in matrix_shapes(layer).items()]
        between = sum(vectors * rank for vectors, _, _ in sizes)
        dense += kernel(sum(vectors * out * inputs for vectors, out, inputs in sizes), call.inputs + call.outputs)
        factored += kernel(sum(vectors * rank * inputs for vectors, _, inputs in sizes), call.inputs + between)
        factored += kernel(sum(vectors * rank * out for vectors, out, _ in sizes), between + call.outputs)
    return dense, factored


def executed(model: nn.Module, sample: Sequence[Any]) -> dict[str, list[tuple[int, Call | None]]]:
    """The calls of every weight layer in a forward pass of the sample, numbered in the order in which they start.

    Weight layers are those that can be factorised, embeddings, and other modules that hold matrices and contain no modules.
    """
    layers = dict(factorable(model))
    others = {name for name, _ in with_other_matrices(model) if not any(model.get_submodule(name).children())}
    inside = inside_factored(model)
    lookups = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module) not in inside
    }
    calls: dict[str, list[tuple[int, Call | None]]] = {}
    order = iter(range(2**62))

    def hook(name: str) -> Any:
        starts: list[int] = []

        def start(module: nn.Module, args: tuple[Any, ...]) -> None:
            starts.append(next(order))

        def end(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            call = call_of(layers[name], args, kwargs, output) if name in layers else None
            calls.setdefault(name, []).append((starts.pop(), call))

        module = model.get_submodule(name)
        return module.register_forward_pre_hook(start), module.register_forward_hook(end, with_kwargs=True)

    handles = [handle for name in (*layers, *sorted(others | lookups)) for handle in hook(name)]
    try:
        one_pass.run(model, sample)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def call_of(layer: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Call:
    vectors = known_kind(layer).vectors(layer, args, kwargs, output)
    inputs, outputs = (sum(tensor.numel() for tensor in tensors(values)) for values in ([*args, *kwargs.values()], output))
    return Call(vectors, inputs, outputs)


def tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)
