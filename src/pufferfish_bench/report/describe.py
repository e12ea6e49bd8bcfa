"""A model layer by layer, full-rank and factored, with the paper's counts beside ours. Nothing is computed: shapes suffice."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import checked, counting, low_rank
from pufferfish_bench.records import frozen, without_rows
from pufferfish_bench.report import tables
from pufferfish_bench.report.numbers import paper_numbers, rounded
from pufferfish_bench.speech import say

log = logging.getLogger(__name__)

NETS = ("vanilla", "hybrid", "low_rank")


def describe(
    name: str,
    *,
    build: Callable[[], nn.Module],
    sample: Callable[[], list[Tensor]],
    hybrid: Mapping[str, Any] | None,
    fully: Mapping[str, Any] | None,
    as_in_paper: bool,
) -> dict[str, Any]:
    """Shapes, ranks, parameters and MACs of every layer of the hybrid net, and the totals of all three nets.

    `hybrid` and `fully` say what is factored in the hybrid and in the fully low-rank net, as `low_rank.choose` takes it;
    if they are None, there is only the full-rank net.
    """
    ways = {"hybrid": hybrid, "low_rank": fully} if hybrid is not None else {}
    with torch.device("meta"):
        example = sample()
        nets = {net: build() for net in ("vanilla", *ways)}
    choices = {net: low_rank.choose(nets[net], **low_rank.arguments(way)) for net, way in ways.items()}
    grown = {low_rank.growth(nets[net], choices[net].ranks): net for net in reversed(choices)}  # once if both nets are one
    for sentence, net in reversed(grown.items()):
        if sentence:
            log.warning(f"{net.replace('_', '-')}: {sentence}")
    for net, choice in choices.items():
        low_rank.restructure(nets[net], choice.ranks)
    choice, hybrid_net = choices.get("hybrid", low_rank.Choice({}, {})), nets.get("hybrid", nets["vanilla"])
    before, after = counting.macs(nets["vanilla"], *example), counting.macs(hybrid_net, *example)
    rows = layer_rows(nets["vanilla"], hybrid_net, choice, before, after)
    elsewhere = {
        figure: count[""] - sum(row[figure] for row in rows) for figure, count in (("macs", before), ("macs_hybrid", after))
    }
    if any(elsewhere.values()):
        nothing = {"shape": [], "rank": None, "left_alone": None, "parameters": 0, "parameters_hybrid": 0}
        rows.append({"layer": "attention, tied output", **nothing, **elsewhere})
    modular = not any(elsewhere.values())  # the paper's counter sees modules only: what it makes of other nets says nothing
    paper = paper_numbers()["models"].get(name, {}) if as_in_paper else {}
    totals = {}
    for net, model in nets.items():
        totals[net] = {
            "parameters": counting.parameters(model),
            "trainable_parameters": counting.trainable_parameters(model),
            "macs": counting.macs(model, *example)[""],
            "macs_as_in_paper": counting.macs_as_in_paper(with_late_strides(model), *example) if modular else None,
            "macs_as_in_paper_early_strides": counting.macs_as_in_paper(model, *example) if modular else None,
            "paper": paper.get(net, {}),
        }
    also = counting.also_counted(nets["vanilla"]) if modular else []
    note = paper.get("note", "") if ways else "model.low_rank says nothing about factoring: this is the full-rank net alone."
    return {"model": name, "layers": rows, "left": choice.left, "totals": totals, "also_counted": also, "note": note}


def layer_rows(
    vanilla: nn.Module, hybrid: nn.Module, choice: low_rank.Choice, before: Mapping[str, int], after: Mapping[str, int]
) -> list[dict[str, Any]]:
    """A row for every module that has parameters of its own; `before` and `after` are the MACs of both nets by module."""
    rows: dict[str, dict[str, Any]] = {}
    counted: set[nn.Parameter] = set()  # a tied weight belongs to the first layer that has it
    for layer, module in vanilla.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        fresh = sum(parameter.numel() for parameter in own if parameter.requires_grad and parameter not in counted)
        counted.update(own)
        rows[layer] = {
            "layer": layer,
            "shape": list(own[0].shape),
            "rank": choice.ranks.get(layer),
            "left_alone": choice.left.get(layer),
            "parameters": fresh,
            "parameters_hybrid": counting.parameters(hybrid.get_submodule(layer)) if layer in choice.ranks else fresh,
            "macs": before[layer],
            "macs_hybrid": after[layer],
        }
    for layer in rows:  # a module's MACs include those of the modules in it, which have rows of their own
        above = next((name for name in enclosing(layer) if name in rows), None)
        if above is not None:
            rows[above]["macs"] -= before[layer]
            rows[above]["macs_hybrid"] -= after[layer]
    return list(rows.values())


def enclosing(layer: str) -> Iterator[str]:
    """The names of the modules that a module is in, from the inside out; the last is the model, ""."""
    while layer:
        layer = layer.rpartition(".")[0]
        yield layer


def show_run(directory: Path, console: Console) -> None:
    """What the surgeries of a run did to its layers, and when."""
    record, rows = checked.read(directory)
    with checked.asking(directory):
        show_record(record, console)
        if missing := checked.missing_epochs(record, rows):
            say(f"the record is {without_rows(missing)}", console)


def show_record(record: Mapping[str, Any], console: Console) -> None:
    say(record["settings"]["name"], console, style="bold")
    for operation in record["operations"]:
        layers = operation["layers"]
        figures = list(dict.fromkeys(figure for layer in layers.values() for figure in layer))
        title = f"phase {operation['phase']}, from epoch {operation['epoch'] + 1} on: {len(layers)} layers"
        if layers and "rank" in figures:
            title += f", the first is {next(iter(layers))}"  # the paper's K
        shown = tables.table("layer", *figures, title=title)
        for name, layer in layers.items():
            values = (layer.get(figure) for figure in figures)
            shown.add_row(name, *("" if v is None else f"{v:.4g}" if isinstance(v, float) else f"{v:,}" for v in values))
        tables.show(shown, console)
        if "note" in operation:
            say(operation["note"], console)
        for layer, reason in operation.get("left", {}).items():
            say(f"left alone: {layer or 'the model itself'}: {reason}", console)
    if not record["operations"]:
        say("no layer was changed", console)
    if "summary" in record:
        summary = record["summary"]
        trained = f" ({frozen(summary)})" if frozen(summary) else ""
        say(f"parameters {summary['parameters']:,}{trained}, MACs {summary['macs']:,}", console)
    ratio = record["settings"]["method"].get("prune_ratio")
    paper = paper_numbers()["table7_eb_train"].get(f"eb_{round(100 * ratio)}") if ratio else None
    if paper and record["settings"]["name"].startswith("resnet50") and "penalty" in record["settings"]["method"]:
        say(
            f"the paper's ResNet-50 on ImageNet, pruned by {ratio:.0%}: parameters {paper['params']:,}, "
            f"MACs {rounded(paper['macs'])}, top-1 {paper['top1']} %. It takes the larger of two counts where paths join; "
            "here a channel stays if any path writes it.",
            console,
        )


def with_late_strides(model: nn.Module) -> nn.Module:
    """The same function as the authors build it: a factored 1x1 convolution has its stride on its second factor."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, low_rank.LowRank) and isinstance(layer.u, nn.Conv2d) and layer.u.kernel_size == (1, 1):
            layer.u.stride, layer.v.stride = layer.v.stride, layer.u.stride
    return model


def show(description: Mapping[str, Any], console: Console) -> None:
    """The description as two tables."""
    columns = ("layer", "shape", "rank", "parameters", "hybrid", "MACs", "hybrid")
    layers = tables.table(
        *columns, title=description["model"] + ": full rank, and hybrid where it differs" * ("hybrid" in description["totals"])
    )
    for row in description["layers"]:
        layers.add_row(
            row["layer"] or "the model itself",
            "x".join(map(str, row["shape"])),
            str(row["rank"] or ""),
            f"{row['parameters']:,}",
            f"{row['parameters_hybrid']:,}" if row["rank"] else "",
            f"{row['macs']:,}",
            f"{row['macs_hybrid']:,}" if row["rank"] else "",
        )
    modular = all(total["macs_as_in_paper"] is not None for total in description["totals"].values())
    columns = ("net", "parameters", "paper", "MACs", *("MACs, paper's way", "rounded", "paper") * modular)
    totals = tables.table(*columns, title="totals")
    for net, total in description["totals"].items():
        paper, theirs = total["paper"], total["macs_as_in_paper"]
        printed = rounded(paper["macs"]) if "macs" in paper else ""
        totals.add_row(
            net.replace("_", "-"),
            f"{total['parameters']:,}" + (f" ({frozen(total)})" if frozen(total) else ""),
            f"{paper['params']:,}" if "params" in paper else "",
            f"{total['macs']:,}",
            *((f"{theirs:,}", rounded(theirs), printed) if modular else ()),
        )
    tables.show(layers, console, dispensable=("shape",))
    for layer, reason in description["left"].items():
        say(f"left alone: {layer or 'the model itself'}: {reason}", console)
    tables.show(totals, console, dispensable=("MACs, paper's way",))
    say(
        "MACs: multiply-accumulates of convolutions and matrix products for one sample (of text: one word)"
        + (f"; the paper's way adds {', '.join(description['also_counted'])}." if description["also_counted"] else "."),
        console,
    )
    if description["note"]:
        say(description["note"], console, lines=True)
    for net, total in description["totals"].items():
        late, early = total["macs_as_in_paper"], total["macs_as_in_paper_early_strides"]
        if modular and rounded(late) != rounded(early):
            say(
                f"{net.replace('_', '-')}: where a strided 1x1 convolution is factored, the paper's net has the stride on "
                f"the second factor and ours on the first. It is the same function with {late - early:,} MACs fewer: "
                f"{rounded(early)} instead of {rounded(late)}.",
                console,
            )
