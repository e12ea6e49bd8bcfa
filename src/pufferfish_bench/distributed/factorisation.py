"""Factorises a model with its layers shared out over ranks."""

from collections.abc import Mapping

from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World


def factorise(world: World, model: nn.Module, ranks: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """As `lowrank.factorise`, in all ranks together: each computes some layers and sends their factors to the others.

    All ranks must have the same weights; they end up with the same factors, bit for bit, and return the same. If a layer cannot
    be factorised, all ranks raise the same InputError.
    """
    lowrank.check(model, ranks)
    workers = share_out({name: lowrank.factorisation_work(lowrank.get_layer(model, name)) for name in ranks}, world.size)
    factored, done, error = {}, {}, None
    try:
        factored, done = lowrank.factorise_layers(model, {name: ranks[name] for name in ranks if workers[name] == world.rank})
    except InputError as caught:  # the other ranks do not see this layer
        error = str(caught)
    reports = world.gather((done, error))
    for _, error in reports:
        if error is not None:
            raise InputError(error)
    for name, rank in ranks.items():
        if name not in factored:
            factored[name] = lowrank.empty_factors(lowrank.get_layer(model, name), rank)
        world.broadcast((parameter.detach() for parameter in factored[name].parameters()), workers[name])
    lowrank.replace_all(model, factored)
    return {name: reports[workers[name]][0][name] for name in ranks}


def share_out(work: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The rank that does each piece of work: the largest piece left goes to the rank with the least work so far."""
    loads, workers = [0] * ranks, {}
    for name in sorted(work, key=lambda name: (-work[name], name)):
        workers[name] = loads.index(min(loads))
        loads[workers[name]] += work[name]
    return workers
