"""The low-rank LSTM layer against torch's fused one: forward and backward at the paper's size (1500 hidden, batch 20, 35 steps).

Measured twice: with the system's memory allocation, and with freed memory kept by the process, as in a run on a CPU. That helps
torch's layer more, because it allocates more.
"""

import statistics
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.bench import interleaved
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.report import tables
from pufferfish_bench.training.memory import keep_freed_memory

ROUNDS = 11


def forward_and_backward(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> None:
    layer.zero_grad()
    outputs, _ = layer(x, state)
    outputs.sum().backward()


def measure(
    *, out: Path, rounds: int = ROUNDS, hidden: int = 1500, batch_size: int = 20, steps: int = 35, rank: int = 375
) -> None:
    """Print the table and write the numbers to `out`; by default at the paper's size."""
    torch.manual_seed(1)
    whole = LSTM(hidden, hidden)
    factored, _ = lowrank.factorise_layer(whole, rank)
    x = torch.randn(steps, batch_size, hidden, requires_grad=True)
    state = (torch.zeros(batch_size, hidden), torch.zeros(batch_size, hidden))
    layers = {"torch's LSTM": whole, f"low-rank ({rank})": factored}
    work = {name: partial(forward_and_backward, layer, x, state) for name, layer in layers.items()}
    table = tables.table(
        "memory",
        "layer",
        "seconds",
        "times as fast",
        title=f"{hidden} hidden, batch {batch_size}, {steps} steps, forward and backward",
    )
    taken, gains = {}, {}
    for memory, prepare in {"as it comes": lambda: None, "kept": keep_freed_memory}.items():
        prepare()
        taken[memory] = interleaved.seconds(work, rounds=rounds)
        fused, ours = taken[memory].values()
        gains[memory] = interleaved.ratio(fused, ours)
        for name, seconds in taken[memory].items():
            table.add_row(memory, name, f"{statistics.median(seconds):.3f}", f"{interleaved.ratio(fused, seconds):.2f}")
    tables.show(table, Console())
    settings = {"hidden": hidden, "batch_size": batch_size, "steps": steps, "rank": rank, "rounds": rounds}
    interleaved.write(out / "lstm.json", {"settings": settings, "seconds": taken, "times_as_fast": gains})
