"""Factorises a model with its layers shared out over ranks."""

from collections.abc import Mapping

from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World


def factorise(world: World, model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """As `lowrank.factorise`, in all ranks together: each computes some layers and sends their factors to the others.

    All ranks must have the same weights; they end up with the same factors, bit for bit, and return the same. If a rank fails,
    all fail: with the same InputError, or the others with an InputError that quotes the error of that rank.
    """
    lowrank.check(model, ranks)
    workers = share_out({name: lowrank.factorisation_work(lowrank.get_layer(model, name)) for name in ranks}, world.size)
    factored, done, failure = {}, {}, None
    try:
        factored, done = lowrank.factorise_layers(model, {name: ranks[name] for name in ranks if workers[name] == world.rank})
    except Exception as error:  # whatever it is: the other ranks would wait for this one
        failure = error
    reports = world.gather((done, described(failure, world.rank)))
    if failure is not None and not isinstance(failure, InputError):
        raise failure
    for _, sentence in reports:
        if sentence is not None:
            raise InputError(sentence)
    for name, rank in ranks.items():
        if name not in factored:
            factored[name] = lowrank.empty_factors(lowrank.get_layer(model, name), rank)
        world.broadcast((parameter.detach() for parameter in factored[name].parameters()), workers[name])
    lowrank.replace_all(model, factored)
    return {name: reports[workers[name]][0][name] for name in ranks}


def described(failure: Exception | None, rank: int) -> str | None:
    """The sentence that other ranks report about the error of a rank."""
    if failure is None or isinstance(failure, InputError):
        return None if failure is None else str(failure)
    return f"rank {rank} could not factorise its layers ({type(failure).__name__}: {failure})"


def share_out(work: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The rank that does each piece of work: the largest piece left goes to the rank with the least work so far."""
    loads, workers = [0] * ranks, {}
    for name in sorted(work, key=lambda name: (-work[name], name)):
        workers[name] = loads.index(min(loads))
        loads[workers[name]] += work[name]
    return workers
