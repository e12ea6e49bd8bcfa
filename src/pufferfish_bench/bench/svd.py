"""The switch to low-rank layers: the time of the factorisation against torch's SVD of each of the same layers."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.config.build import build, composed
from pufferfish_bench.config.settings import plain

NETS = ("resnet18", "resnet50", "wrn50_2")
QUICK = {"rounds": 1, "width": 0.5}
OURS, TORCH = "lowrank.factorise", "torch.linalg.svd"


def measure(*, rounds: int = 3, width: float = 1.0) -> tuple[list[Row], dict[str, Any]]:
    """`width` multiplies the width of the nets."""
    torch.manual_seed(1)
    rows, figures = [], {}
    for name in NETS:
        config = composed([f"model={name}", f"model.net.width={width}"])
        model = build("model", config.model)
        ranks = lowrank.choose(model, **plain(config.model.low_rank)).ranks
        copies = iter([copy.deepcopy(model) for _ in range(rounds + 1)])  # a model can be factorised once
        work = {
            OURS: lambda copies=copies, ranks=ranks: lowrank.factorise(next(copies), ranks),
            TORCH: partial(decompose_each, model, ranks),
        }
        # the first net warms up: an SVD of the largest one takes long
        taken = interleaved.seconds(work, rounds=rounds, warm_up=name == NETS[0])
        rows.append(compare(f"svd_{name}", *taken.items(), note=f"{len(ranks)} layers, random weights."))
        figures[name] = {"seconds": taken, "layers": len(ranks)}
    return rows, figures


def decompose_each(model: nn.Module, ranks: dict[str, int]) -> None:
    for name in ranks:
        torch.linalg.svd(model.get_submodule(name).weight.detach().flatten(1), full_matrices=False)
