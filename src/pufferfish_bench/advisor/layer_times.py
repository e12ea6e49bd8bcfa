"""Forward and backward time of every layer that can be factorised, dense and at several ranks, with the inputs of a real batch.

Layers of one kind, shape and input are measured once. Dense and factorised forms take turns.
"""

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.advisor.copies import tensors
from pufferfish_bench.advisor.decisions import LEAST_NOISE, Timing
from pufferfish_bench.advisor.whole_step import Conditions, over_ranks, timed
from pufferfish_bench.bench import interleaved
from pufferfish_bench.lowrank.choice import factorable as of_known_kinds
from pufferfish_bench.training import memory_format

DENSE = "dense"
LEAST_SECONDS = 0.01  # a short layer is called several times in a row, until the dense form takes this long
MOST_CALLS = 50


@dataclass(frozen=True)
class LayerTimes:
    """The measured times of a layer, and how many others share the measurement."""

    name: str
    kind: str
    shape: tuple[int, int]  # of its matrix
    input: tuple[int, ...]  # the shape of its input; of several, the one that takes most of the time
    calls: int  # in one forward pass
    weights: int
    dense: float  # seconds of forward and backward of one call; the mean over all calls
    ranks: dict[int, Timing] = field(default_factory=dict)


@dataclass
class Used:
    """A group of equal layers: the arguments of a call, and how often each layer is called."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    layers: dict[str, int] = field(default_factory=dict)  # name -> calls


def measure(
    model: nn.Module, choice: lowrank.Choice, ratios: Sequence[float], conditions: Conditions, channels_last: bool | str
) -> list[LayerTimes]:
    """The times of all layers that can be factorised and are used, in the order of the model."""
    names = list(dict.fromkeys([*factorable(model), *choice.ranks]))
    groups = used_layers(model, names, conditions)
    found: dict[str, list[LayerTimes]] = {}
    for number, group in enumerate(groups, start=1):
        first = next(iter(group.layers))
        layer = lowrank.get_layer(model, first)
        shape = lowrank.matrix_shape(layer)
        ranks = {lowrank.rank_of(shape, ratio) for ratio in ratios}
        ranks |= {choice.ranks[name] for name in group.layers if name in choice.ranks}
        work = {DENSE: call(copy.deepcopy(layer), group.arguments, conditions)}
        for rank in sorted(ranks, reverse=True):
            factors = nn.Sequential(lowrank.random_factors(layer, rank).train())
            memory_format.prepare(factors, conditions.device, channels_last)
            work[str(rank)] = call(factors[0], group.arguments, conditions)
        label, in_a_row = f"layer {number} of {len(groups)}, {first}", calls_in_a_row(work[DENSE], conditions)
        taken = timed({f"{label}, {form}": repeated(piece, in_a_row) for form, piece in work.items()}, conditions)
        by_form = {form.rpartition(", ")[2]: [each / in_a_row for each in seconds] for form, seconds in taken.items()}
        dense, timings = summarised(by_form, conditions)
        for name, calls in group.layers.items():
            its = (shape, input_shape(group.arguments), calls, weights(layer), dense, timings)
            found.setdefault(name, []).append(LayerTimes(name, type(layer).__name__, *its))
    return [over_inputs(found[name]) for name in names if name in found]


def over_inputs(parts: Sequence[LayerTimes]) -> LayerTimes:
    """The times of a layer that is called with inputs of several shapes: the mean over all calls."""
    calls = sum(part.calls for part in parts)
    times = [part.calls * part.dense for part in parts]
    dense = sum(times)

    def mean(rank: int) -> Timing:
        its = [part.ranks[rank] for part in parts]
        seconds = sum(part.calls * timing.seconds for part, timing in zip(parts, its, strict=True)) / calls
        ratio, uncertain = (
            sum(time * getattr(timing, figure) for time, timing in zip(times, its, strict=True)) / dense
            for figure in ("ratio", "noise")
        )
        return Timing(seconds, ratio, uncertain)

    longest = parts[times.index(max(times))]
    ranks = [rank for rank in longest.ranks if all(rank in part.ranks for part in parts)]
    return replace(longest, calls=calls, dense=dense / calls, ranks={rank: mean(rank) for rank in ranks})


def factorable(model: nn.Module) -> list[str]:
    """The layers that can be factorised, whatever the settings keep."""
    if not any(True for _ in of_known_kinds(model)):
        return []
    return list(lowrank.choose(model, keep=[], first=None, rank_ratio=0.25).ranks)


def weights(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim > 1)


def used_layers(model: nn.Module, names: Sequence[str], conditions: Conditions) -> list[Used]:
    """The layers that a forward pass calls, grouped by what decides their time."""
    groups: dict[Any, Used] = {}
    handles = []

    def watch(name: str) -> Callable[..., None]:
        def called(layer: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            key = signature(layer, (positional, named))
            group = groups.get(key)
            if group is None:
                group = groups[key] = Used((detached(positional), detached(named)))
            group.layers[name] = group.layers.get(name, 0) + 1

        return called

    try:
        for name in names:
            handles.append(model.get_submodule(name).register_forward_pre_hook(watch(name), with_kwargs=True))
        with conditions.precision.autocast():
            conditions.loss(model.train())
    finally:
        for handle in handles:
            handle.remove()
    return list(groups.values())


def signature(layer: nn.Module, arguments: Any) -> tuple[Any, ...]:
    """Equal for layers that take the same time: type and geometry, memory format of the weights, shapes of the inputs."""
    own = tuple((tuple(p.shape), p.stride(), p.dtype, p.requires_grad) for p in layer.parameters())
    return repr(layer), own, tuple((tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in tensors(arguments))


def detached(thing: Any) -> Any:
    """The same arguments outside the graph of the model; what needed a gradient still does."""
    if isinstance(thing, Tensor):
        return thing.detach().clone(memory_format=torch.preserve_format).requires_grad_(thing.requires_grad)
    if isinstance(thing, Mapping):
        return {key: detached(value) for key, value in thing.items()}
    return type(thing)(map(detached, thing)) if isinstance(thing, tuple | list) else thing


def input_shape(arguments: Any) -> tuple[int, ...]:
    return tuple(next(tensors(arguments)).shape)


def call(layer: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], conditions: Conditions) -> Callable[[], None]:
    """One forward and backward pass of a layer."""
    positional, named = arguments
    with conditions.precision.autocast():
        output = next(tensors(layer(*positional, **named)))
    gradient = torch.randn_like(output)
    wanted = [tensor for tensor in [*tensors(arguments), *layer.parameters()] if tensor.requires_grad]

    def both() -> None:
        with conditions.precision.autocast():
            output = next(tensors(layer(*positional, **named)))
        torch.autograd.grad(output, wanted, gradient, allow_unused=True)

    return both


def calls_in_a_row(work: Callable[[], None], conditions: Conditions) -> int:
    """How often to call a piece of work so that its time is well above that of the clock; the same on all ranks."""
    work()  # the first call may allocate memory and choose kernels
    conditions.world.synchronise()
    start = time.perf_counter()
    work()
    conditions.world.synchronise()
    needed = math.ceil(LEAST_SECONDS / max(time.perf_counter() - start, 1e-6))
    return int(conditions.world.broadcast_object(min(max(1, needed), MOST_CALLS)))


def repeated(work: Callable[[], None], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()

    return run


def summarised(taken: Mapping[str, list[float]], conditions: Conditions) -> tuple[float, dict[int, Timing]]:
    """The median seconds of the dense form, and the timing of each rank; the mean over ranks of the world."""
    dense = taken[DENSE]
    figures = {DENSE: statistics.median(dense)}
    for form, seconds in taken.items():
        if form != DENSE:
            ratios = interleaved.ratios(seconds, dense)
            figures |= {
                form: statistics.median(seconds),
                f"{form} ratio": statistics.median(ratios),
                f"{form} noise": noise(ratios),
            }
    figures = over_ranks(conditions.world, figures)
    ranks = [int(form) for form in taken if form != DENSE]
    return figures[DENSE], {
        rank: Timing(figures[str(rank)], figures[f"{rank} ratio"], figures[f"{rank} noise"]) for rank in ranks
    }


def noise(values: Sequence[float]) -> float:
    """Two standard errors of the median, from the median absolute deviation, as for normally distributed values."""
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return max(LEAST_NOISE, 2 * 1.2533 * deviation / math.sqrt(len(values)))
