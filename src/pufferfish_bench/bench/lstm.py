"""The low-rank LSTM layer against torch's fused one: forward and backward at the paper's size (1500 hidden, batch 20, 35 steps).

Measured twice: with memory as the system gives it, and with freed memory kept as a run on a CPU does, which helps torch's
layer more: it asks for more of it.

python -m pufferfish_bench.bench.lstm
"""

import statistics
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import low_rank
from pufferfish_bench.bench import interleaved
from pufferfish_bench.machine import hold_on_to_memory
from pufferfish_bench.recurrent import LSTM
from pufferfish_bench.report import tables

HIDDEN, BATCH, STEPS, RANK, ROUNDS = 1500, 20, 35, 375, 11


def forward_and_backward(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> None:
    layer.zero_grad()
    outputs, _ = layer(x, state)
    outputs.sum().backward()


def main() -> None:
    torch.manual_seed(1)
    whole = LSTM(HIDDEN, HIDDEN)
    factored, _ = low_rank.by_svd(whole, RANK)
    x = torch.randn(STEPS, BATCH, HIDDEN, requires_grad=True)
    state = (torch.zeros(BATCH, HIDDEN), torch.zeros(BATCH, HIDDEN))
    layers = {"torch's LSTM": whole, f"low-rank ({RANK})": factored}
    work = {name: partial(forward_and_backward, layer, x, state) for name, layer in layers.items()}
    table = tables.table(
        "memory", "layer", "seconds", "times as fast", title=f"{HIDDEN} hidden, batch {BATCH}, {STEPS} steps, both ways"
    )
    taken, gains = {}, {}
    for memory, prepare in {"as it comes": lambda: None, "kept": hold_on_to_memory}.items():
        prepare()
        taken[memory] = interleaved.seconds(work, rounds=ROUNDS)
        fused, ours = taken[memory].values()
        gains[memory] = interleaved.ratio(fused, ours)
        for name, seconds in taken[memory].items():
            table.add_row(memory, name, f"{statistics.median(seconds):.3f}", f"{interleaved.ratio(fused, seconds):.2f}")
    tables.show(table, Console())
    settings = {"hidden": HIDDEN, "batch_size": BATCH, "steps": STEPS, "rank": RANK, "rounds": ROUNDS}
    interleaved.write(Path("results/bench/lstm.json"), {"settings": settings, "seconds": taken, "times_as_fast": gains})


if __name__ == "__main__":
    main()
