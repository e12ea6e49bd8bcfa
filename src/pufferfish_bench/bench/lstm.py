"""The low-rank LSTM layer against torch's fused one: forward and backward at the paper's size (1500 hidden, batch 20, 35 steps).

Measured twice: with the system's memory allocation, and with freed memory kept by the process, as in a run on a CPU. That helps
torch's layer more, because it allocates more. The row is about the second.
"""

import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.bench import interleaved, profiled
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.bench.targets import TARGETS
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.training.memory import keep_freed_memory

QUICK = {"rounds": 4}
PRODUCTS = ("_linear_pointwise", "mm", "addmm")  # ends of the names of operators; bmm and baddbmm too
TORCH, OURS = "torch's LSTM", "low-rank LSTM"


def forward_and_backward(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> None:
    layer.zero_grad()
    outputs, _ = layer(x, state)
    outputs.sum().backward()


def measure(
    *, rounds: int = 15, hidden: int = 1500, batch_size: int = 20, steps: int = 35, rank: int = 375
) -> tuple[list[Row], dict[str, Any]]:
    torch.manual_seed(1)
    whole = LSTM(hidden, hidden)
    factored, _ = lowrank.factorise_layer(whole, rank)
    x = torch.randn(steps, batch_size, hidden, requires_grad=True)
    state = (torch.zeros(batch_size, hidden), torch.zeros(batch_size, hidden))
    layers = {TORCH: whole, OURS: factored}
    work = {name: partial(forward_and_backward, layer, x, state) for name, layer in layers.items()}
    taken = {"as it comes": interleaved.seconds(work, rounds=rounds)}
    keep_freed_memory()
    taken["kept"] = interleaved.seconds(work, rounds=rounds)
    macs = {name: counting.macs(layer, x, state)[""] for name, layer in layers.items()}
    gains = {memory: interleaved.ratio(seconds[TORCH], seconds[OURS]) for memory, seconds in taken.items()}
    profile = {name: profiled.shares(turn) for name, turn in work.items()}
    products = statistics.median(taken["kept"][OURS]) * sum(
        share for name, share in profile[OURS].items() if name.endswith(PRODUCTS)
    )
    allowed = statistics.median(taken["kept"][TORCH]) / TARGETS["lstm"].number
    note = (
        f"{hidden} hidden, batch {batch_size}, {steps} steps, rank {rank}, forward and backward, freed memory kept; "
        f"{gains['as it comes']:.2f} with memory as it comes. {profiled.sentence('ours', profile[OURS])} "
        f"Matrix products alone take {1e3 * products:.0f} ms; the target leaves {1e3 * allowed:.0f} ms for everything."
    )
    sides = [(name, taken["kept"][name]) for name in (OURS, TORCH)]
    row = compare("lstm", *sides, limit=macs[TORCH] / macs[OURS], note=note)
    return [row], {"seconds": taken, "times_as_fast": gains, "macs": macs, "profile": profile}
