"""The paper's Table 1: its formulas for the size and cost of a layer, beside what is counted in such a layer of ours."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import counting, low_rank
from pufferfish_bench.models.transformer import Attention, FeedForward
from pufferfish_bench.recurrent import LSTM
from pufferfish_bench.report import output
from pufferfish_bench.report.output import Sheet
from pufferfish_bench.speech import spoken_errors

TITLE = "Table 1: parameters and multiply-accumulates of a layer"
NOTE = (
    "Weights without biases, which are not factored. MACs are counted for one image, one word, or a sequence of N words; the "
    "paper gives orders, so a constant factor between the two columns is no contradiction (4 gates; p heads, of which it gives "
    "one). Where parameters differ: the paper's formula has factors for each head, more of them than the layer they replace; the "
    "nets behind its tables, and ours, have one pair for all heads: 8pdr. This is counted in the code's own "
    "layers: there is no record."
)


@dataclass(frozen=True)
class Layer:
    """A kind of layer at the sizes one of the paper's nets has, with the paper's formulas for it."""

    name: str
    sizes: Mapping[str, int]
    build: Callable[..., nn.Module]  # of the sizes
    example: Callable[..., Sequence[Tensor]]
    parts: Sequence[str]  # that are factored
    formulas: Mapping[str, tuple[str, str]]  # net -> parameters, MACs


class Alone(nn.Module):
    """A layer as a net of its own."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        if isinstance(self.layer, Attention):
            return self.layer(*inputs, self.layer.keys_and_values(*inputs))
        return self.layer(inputs[0], inputs[1:]) if len(inputs) > 1 else self.layer(*inputs)


LAYERS = (
    Layer(
        "FC", {"m": 512, "n": 512, "r": 128},
        lambda m, n, **_: nn.Linear(n, m, bias=False), lambda n, **_: [torch.zeros(1, n)], ["layer"],
        {"vanilla": ("m * n", "m * n"), "factorised": ("r * (m + n)", "r * (m + n)")},
    ),
    Layer(
        "convolution", {"c_in": 512, "c_out": 512, "k": 3, "H": 4, "W": 4, "r": 128},
        lambda c_in, c_out, k, **_: nn.Conv2d(c_in, c_out, k, padding=k // 2, bias=False),
        lambda c_in, H, W, **_: [torch.zeros(1, c_in, H, W)], ["layer"],
        {
            "vanilla": ("c_in * c_out * k**2", "c_in * c_out * k**2 * H * W"),
            "factorised": ("c_in * r * k**2 + r * c_out", "r * c_in * k**2 * H * W + r * H * W * c_out"),
        },
    ),
    Layer(
        "LSTM", {"d": 1500, "h": 1500, "r": 375},
        lambda d, h, **_: LSTM(d, h), lambda d, h, **_: [torch.zeros(1, 1, d), torch.zeros(1, h), torch.zeros(1, h)], ["layer"],
        {"vanilla": ("4 * (d * h + h**2)", "d * h + h**2"), "factorised": ("4 * d * r + 12 * h * r", "d * r + h * r")},
    ),
    Layer(
        "attention", {"p": 8, "d": 64, "N": 32, "r": 128},
        lambda p, d, **_: Attention(width=p * d, heads=p, dropout=0.0), lambda p, d, N, **_: [torch.zeros(1, N, p * d)],
        ["layer.query", "layer.key", "layer.value", "layer.out"],
        {
            "vanilla": ("4 * p**2 * d**2", "N * p**2 * d**2 + N**2 * d"),
            "factorised": ("(3 * p + 5) * p * r * d", "r * p * d * N + N**2 * d"),
        },
    ),
    Layer(
        "FFN", {"p": 8, "d": 64, "N": 32, "r": 128},
        lambda p, d, **_: FeedForward(width=p * d, inner=4 * p * d, dropout=0.0), lambda p, d, N, **_: [torch.zeros(1, N, p * d)],
        ["layer.inner", "layer.outer"],
        {"vanilla": ("8 * p**2 * d**2", "p**2 * d**2 * N"), "factorised": ("10 * p * d * r", "r * p * d * N")},
    ),
)  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Each layer, vanilla and factorised: the paper's formulas, their values at its sizes, and what is counted."""
    found = []
    for layer in LAYERS:
        for net, (parameters, macs) in layer.formulas.items():
            with torch.device("meta"):
                model, example = Alone(layer.build(**layer.sizes)), layer.example(**layer.sizes)
            if net == "factorised":
                low_rank.restructure(model, dict.fromkeys(layer.parts, layer.sizes["r"]))
            weights = sum(weight.numel() for name, weight in model.named_parameters() if "bias" not in name)
            found.append(
                {
                    "layer": f"{net} {layer.name}",
                    "sizes": ", ".join(f"{name} = {size}" for name, size in layer.sizes.items()),
                    "parameters_formula": printed(parameters), "parameters_paper": value(parameters, layer.sizes),
                    "parameters_counted": weights,
                    "macs_formula": f"O({printed(macs)})", "macs_paper": value(macs, layer.sizes),
                    "macs_counted": counting.macs(model, *example)[""],
                }
            )  # fmt: skip
    return found


def value(formula: str, sizes: Mapping[str, int]) -> int:
    """A formula of this file at some sizes."""
    return eval(formula, {"__builtins__": {}}, dict(sizes))


def printed(formula: str) -> str:
    return formula.replace("**", "^")  # which Markdown would take for bold


def sheet(found: Sequence[Mapping[str, Any]]) -> Sheet:
    columns = ["layer", "at", "parameters, paper", "that is", "counted", "MACs, paper", "that is", "counted"]
    lines = [[f"{word:,}" if isinstance(word, int) else word for word in row.values()] for row in found]
    return Sheet(TITLE, columns, lines, NOTE)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m pufferfish_bench.report.complexity", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FOLDER/NAME", help="write NAME.csv and NAME.md there")
    given, console = parser.parse_args(words), Console()
    with spoken_errors():
        found = rows()
        sheet(found).show(console)
        if given.out:
            output.write(given.out, {".csv": output.csv_text(found), ".md": sheet(found).markdown()}, console)


if __name__ == "__main__":
    main(sys.argv[1:])
