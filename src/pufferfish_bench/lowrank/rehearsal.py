"""Tries a factorisation before training, so that code which does not work with low-rank layers is found before the switch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting, one_pass
from pufferfish_bench.lowrank.choice import check, few
from pufferfish_bench.lowrank.factorise import random_factors, replace, replace_all
from pufferfish_bench.lowrank.kinds import get_layer


def rehearse(model: nn.Module, ranks: Mapping[str, int], sample: Sequence[Any]) -> str | None:
    """Call the model with a sample while it has random low-rank layers; it is as before afterwards.

    An InputError names the layers without which the model fails. Returns a warning about layers that are not called; None if
    there are none. `sample` holds the positional arguments of one forward pass.
    """
    check(model, ranks)
    error, called = attempt(model, ranks, sample)
    if error is not None:
        one_pass.run(model, sample)  # refuses the sample if the dense model fails too
        alone = [name for name, rank in ranks.items() if attempt(model, {name: rank}, sample)[0] is not None]
        raise InputError(
            f"the model fails with low-rank layers in place of {few(alone or list(ranks))} ({one_pass.in_words(error)}): its "
            "code needs something that only dense layers have; name these layers in low_rank.keep"
        ) from error
    uncalled = [name for name in ranks if name not in called]
    if not uncalled:
        return None
    return (
        f"{len(uncalled)} of {len(ranks)} layers to factorise are not called in the forward pass ({few(uncalled)}): they are "
        "unused, or other code reads their weight, which a low-rank layer computes again each time; name them in low_rank.keep"
    )


def attempt(model: nn.Module, ranks: Mapping[str, int], sample: Sequence[Any]) -> tuple[Exception | None, set[str]]:
    """The error of a forward pass with low-rank layers, if there is one, and the low-rank layers that were called."""
    called: set[str] = set()

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.add(name)

    with one_pass.unchanged(model), factorised_at_random(model, ranks) as factored:
        for name, layer in factored.items():
            layer.register_forward_pre_hook(note(name))
        try:
            counting.forward(model, *one_pass.on_device_of(model, sample))
        except Exception as error:  # the code of a model may raise anything
            return error, called
    return None, called


@contextmanager
def factorised_at_random(model: nn.Module, ranks: Mapping[str, int]) -> Iterator[dict[str, nn.Module]]:
    """The model with random low-rank layers in the places of these layers, for a moment."""
    dense = {name: get_layer(model, name) for name in ranks}
    try:
        factored: dict[str, nn.Module] = {name: random_factors(layer, ranks[name]) for name, layer in dense.items()}
        replace_all(model, factored)
        yield factored
    finally:
        for name, layer in dense.items():
            replace(model, name, layer)
