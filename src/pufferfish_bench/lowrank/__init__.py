"""Factorise any nn.Module into low-rank layers and merge it again. Usable without the runner: needs only torch.

    from pufferfish_bench import lowrank

    choice = lowrank.choose(model, keep=["conv1", "fc"], first=None, rank_ratio=0.25)
    lowrank.factorise(model, choice.ranks)      # truncated SVD of each chosen layer, in place
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)     # the parameters are new
    ...
    lowrank.merge(model)                        # dense layers again, which compute the same

resolve        what `keep: auto` and `first: auto` stand for, by a cost model
choose         which layers to factorise, and at which ranks; also why others stay dense
rehearse       try the low-rank layers in one forward pass: does the model's code work with them?
factorise      replace layers by their truncated SVD
merge          replace low-rank layers by dense ones
stable_rank    how many directions a layer's matrix uses
random_energy  the energy that truncation keeps of a random matrix

SwitchToLowRank  all of it at the end of an epoch of anybody's training loop, with the parameter groups for the new optimizer

The other names are parts of these. nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LSTM, nn.MultiheadAttention, Hugging Face's
Conv1D and lowrank.lstm.LSTM can be factorised.
"""

from pufferfish_bench.lowrank.auto import is_auto, resolve
from pufferfish_bench.lowrank.choice import Choice, arguments, check, choose, growth, rank_of
from pufferfish_bench.lowrank.factorise import (
    chain_rule,
    empty_factors,
    factorisation_work,
    factorise,
    factorise_layer,
    factorise_layers,
    merge,
    merge_layer,
    random_factors,
    replace,
    replace_all,
    restructure,
    stable_rank,
)
from pufferfish_bench.lowrank.kinds import FactoredLayer, Layer, get_layer, matrix_shape, weights_before_and_after
from pufferfish_bench.lowrank.layers import LowRank
from pufferfish_bench.lowrank.momentum import carries_momentum, carry_momentum, momentum_of
from pufferfish_bench.lowrank.random_energy import random_energy
from pufferfish_bench.lowrank.rehearsal import rehearse
from pufferfish_bench.lowrank.svd import truncated_svd
from pufferfish_bench.lowrank.switch import SwitchToLowRank

__all__ = [
    "Choice", "FactoredLayer", "Layer", "LowRank", "SwitchToLowRank", "arguments", "carries_momentum", "carry_momentum",
    "chain_rule", "check", "choose", "empty_factors", "factorisation_work", "factorise", "factorise_layer",
    "factorise_layers", "get_layer", "growth", "is_auto", "matrix_shape", "merge", "merge_layer", "momentum_of",
    "random_energy", "random_factors", "rank_of", "rehearse", "replace", "replace_all", "resolve", "restructure", "stable_rank",
    "truncated_svd", "weights_before_and_after",
]  # fmt: skip
