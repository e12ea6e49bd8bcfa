"""A model layer by layer, full-rank and factored, with the paper's counts beside ours. Nothing is computed: shapes suffice."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rich.console import Console
from torch import nn

from pufferfish_bench import counting, low_rank
from pufferfish_bench.report import tables

IMAGE = (1, 3, 32, 32)
NETS = ("vanilla", "hybrid", "low_rank")


def describe(name: str, build: Callable[[], nn.Module], *, first: str | None, as_in_paper: bool, **layers: Any) -> dict[str, Any]:
    """Shapes, ranks, parameters and MACs of every layer of the hybrid net, and the totals of all three nets."""
    with torch.device("meta"):
        example = torch.empty(IMAGE)
        vanilla, hybrid, fully = build(), build(), build()
    choice = low_rank.choose(hybrid, first=first, **layers)
    low_rank.restructure(hybrid, choice.ranks)
    low_rank.restructure(fully, low_rank.choose(fully, first=None, **layers).ranks)
    before, after = counting.macs(vanilla, example), counting.macs(hybrid, example)
    rows = []
    for layer, module in vanilla.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        rows.append(
            {
                "layer": layer,
                "shape": list(own[0].shape),
                "rank": choice.ranks.get(layer),
                "left_alone": choice.left.get(layer),
                "parameters": sum(parameter.numel() for parameter in own),
                "parameters_hybrid": sum(p.numel() for p in hybrid.get_submodule(layer).parameters()),
                "macs": before[layer],
                "macs_hybrid": after[layer],
            }
        )
    paper = paper_numbers()["models"].get(name, {}) if as_in_paper else {}
    totals = {}
    for net, model in zip(NETS, (vanilla, hybrid, fully), strict=True):
        totals[net] = {
            "parameters": counting.parameters(model),
            "macs": counting.macs(model, example)[""],
            "macs_as_in_paper": counting.macs_as_in_paper(model, example),
            "paper": paper.get(net, {}),
        }
    return {"model": name, "layers": rows, "totals": totals}


def show(description: Mapping[str, Any], console: Console) -> None:
    """The description as two tables."""
    columns = ("layer", "shape", "rank", "parameters", "hybrid", "MACs", "hybrid")
    layers = tables.table(*columns, title=f"{description['model']}: full rank, and hybrid where it differs")
    for row in description["layers"]:
        layers.add_row(
            row["layer"],
            "x".join(map(str, row["shape"])),
            str(row["rank"] or ""),
            f"{row['parameters']:,}",
            f"{row['parameters_hybrid']:,}" if row["rank"] else "",
            f"{row['macs']:,}",
            f"{row['macs_hybrid']:,}" if row["rank"] else "",
        )
    columns = ("net", "parameters", "paper", "MACs", "MACs, paper's way", "rounded", "paper")
    totals = tables.table(*columns, title="totals")
    for net, total in description["totals"].items():
        paper = total["paper"]
        totals.add_row(
            net.replace("_", "-"),
            f"{total['parameters']:,}",
            f"{paper['params']:,}" if "params" in paper else "",
            f"{total['macs']:,}",
            f"{total['macs_as_in_paper']:,}",
            f"{total['macs_as_in_paper'] / 1e9:.2f} G",
            f"{paper['macs'] / 1e9:.2f} G" if "macs" in paper else "",
        )
    tables.show(layers, console)
    for row in description["layers"]:
        if row["left_alone"]:
            console.print(f"left alone: {row['layer']}: {row['left_alone']}", highlight=False)
    tables.show(totals, console)
    console.print(
        "MACs: multiply-accumulates of convolutions and matrix products for one image; "
        "the paper's way adds BatchNorm, and ReLU and pooling modules.",
        highlight=False,
    )


def paper_numbers() -> dict[str, Any]:
    """The numbers the paper prints: inside the installed package, or in results/paper/ of the repository."""
    inside = Path(__file__).parents[1] / "paper"
    directory = inside if inside.is_dir() else Path(__file__).parents[3] / "results" / "paper"
    return OmegaConf.to_container(OmegaConf.load(directory / "numbers.yaml"))
