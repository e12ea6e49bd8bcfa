"""The low-rank LSTM layer against torch's fused one: forward and backward at the paper's size (1500 hidden, batch 20, 35 steps).

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
    taken = interleaved.seconds(
        {name: partial(forward_and_backward, layer, x, state) for name, layer in layers.items()}, rounds=ROUNDS
    )
    fused, ours = taken.values()
    gain = interleaved.ratio(fused, ours)
    table = tables.table("layer", "seconds", "times as fast", title=f"{HIDDEN} hidden, batch {BATCH}, {STEPS} steps, both ways")
    for name, seconds in taken.items():
        table.add_row(name, f"{statistics.median(seconds):.3f}", f"{interleaved.ratio(fused, seconds):.2f}")
    tables.show(table, Console())
    settings = {"hidden": HIDDEN, "batch_size": BATCH, "steps": STEPS, "rank": RANK, "rounds": ROUNDS}
    interleaved.write(Path("results/bench/lstm.json"), {"settings": settings, "seconds": taken, "times_as_fast": gain})


if __name__ == "__main__":
    main()
