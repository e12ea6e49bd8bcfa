"""The low-rank LSTM layer against torch's fused one: forward and backward at the paper's size (1500 hidden, batch 20, 35 steps).

Measured twice: with memory as the system gives it, and with freed memory kept as a run on a CPU does, which helps torch's
layer more: it asks for more of it.

python -m pufferfish_bench.bench.lstm
"""

import statistics
import sys
from collections.abc import Sequence
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
from pufferfish_bench.speech import spoken_errors

ROUNDS = 11


def forward_and_backward(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> None:
    layer.zero_grad()
    outputs, _ = layer(x, state)
    outputs.sum().backward()


def measure(*, rounds: int, out: Path, hidden: int = 1500, batch_size: int = 20, steps: int = 35, rank: int = 375) -> None:
    """Print the table and write the figures to `out`; by default at the paper's size."""
    torch.manual_seed(1)
    whole = LSTM(hidden, hidden)
    factored, _ = low_rank.by_svd(whole, rank)
    x = torch.randn(steps, batch_size, hidden, requires_grad=True)
    state = (torch.zeros(batch_size, hidden), torch.zeros(batch_size, hidden))
    layers = {"torch's LSTM": whole, f"low-rank ({rank})": factored}
    work = {name: partial(forward_and_backward, layer, x, state) for name, layer in layers.items()}
    table = tables.table(
        "memory", "layer", "seconds", "times as fast", title=f"{hidden} hidden, batch {batch_size}, {steps} steps, both ways"
    )
    taken, gains = {}, {}
    for memory, prepare in {"as it comes": lambda: None, "kept": hold_on_to_memory}.items():
        prepare()
        taken[memory] = interleaved.seconds(work, rounds=rounds)
        fused, ours = taken[memory].values()
        gains[memory] = interleaved.ratio(fused, ours)
        for name, seconds in taken[memory].items():
            table.add_row(memory, name, f"{statistics.median(seconds):.3f}", f"{interleaved.ratio(fused, seconds):.2f}")
    tables.show(table, Console())
    settings = {"hidden": hidden, "batch_size": batch_size, "steps": steps, "rank": rank, "rounds": rounds}
    interleaved.write(out / "lstm.json", {"settings": settings, "seconds": taken, "times_as_fast": gains})


def main(words: Sequence[str]) -> None:
    measure(**vars(interleaved.arguments("lstm", __doc__, rounds=ROUNDS).parse_args(words)))


if __name__ == "__main__":
    with spoken_errors():
        main(sys.argv[1:])
