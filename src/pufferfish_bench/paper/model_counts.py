"""Count the parameters and MACs of a model, layer by layer: full-rank, hybrid and fully low-rank. Only shapes are computed."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.lowrank import counting
from pufferfish_bench.paper.numbers import paper_numbers

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

    `hybrid` and `fully` are the arguments of `lowrank.choose` for the hybrid and for the fully low-rank net, or have auto;
    if they are None, only the full-rank net is counted.
    """
    ways = {"hybrid": hybrid, "low_rank": fully} if hybrid is not None else {}
    with torch.device("meta"):
        example = sample()
        nets = {net: build() for net in ("vanilla", *ways)}
    ways = {net: lowrank.resolve(nets[net], example, lowrank.arguments(way)) for net, way in ways.items()}
    choices = {net: lowrank.choose(nets[net], **way) for net, way in ways.items()}
    warn(nets, choices, example)
    for net, choice in choices.items():
        lowrank.restructure(nets[net], choice.ranks)
    choice, hybrid_net = choices.get("hybrid", lowrank.Choice({}, {})), nets.get("hybrid", nets["vanilla"])
    before, after = counting.macs(nets["vanilla"], *example), counting.macs(hybrid_net, *example)
    rows = layer_rows(nets["vanilla"], hybrid_net, choice, before, after)
    elsewhere = {
        figure: count[""] - sum(row[figure] for row in rows) for figure, count in (("macs", before), ("macs_hybrid", after))
    }
    if any(elsewhere.values()):
        nothing = {"shape": [], "rank": None, "left_alone": None, "parameters": 0, "parameters_hybrid": 0}
        rows.append({"layer": "attention, tied output", **nothing, **elsewhere})
    # the paper's counter sees some kinds of modules only: its count of other nets would be wrong
    modular = not any(elsewhere.values()) and counting.seen_by_paper(nets["vanilla"])
    paper = paper_numbers()["models"].get(name, {}) if as_in_paper else {}
    totals = {net: count(model, example, modular) | {"paper": paper.get(net, {})} for net, model in nets.items()}
    also = counting.also_counted(nets["vanilla"]) if modular else []
    note = paper.get("note", "") if ways else "model.low_rank is not set: this is the full-rank net only."
    return {"model": name, "layers": rows, "left": choice.left, "totals": totals, "also_counted": also, "note": note}


def warn(nets: Mapping[str, nn.Module], choices: Mapping[str, lowrank.Choice], example: list[Tensor]) -> None:
    """Warn of layers that do not become smaller or are not called; refuse a net that fails with low-rank layers."""
    found = {}  # one sentence if both nets are the same
    for net, choice in reversed(choices.items()):
        found[lowrank.growth(nets[net], choice.ranks)] = net
        found[lowrank.rehearse(nets[net], choice.ranks, example)] = net
    for sentence, net in reversed(found.items()):
        if sentence:
            log.warning(f"{net.replace('_', '-')}: {sentence}")


def count(model: nn.Module, example: list[Tensor], modular: bool) -> dict[str, int | None]:
    """The totals of one net; the paper's way to count MACs is defined for `modular` nets only."""
    return {
        "parameters": counting.parameters(model),
        "parameters_and_buffers": counting.parameters(model) + counting.buffers(model),
        "trainable_parameters": counting.trainable_parameters(model),
        "macs": counting.macs(model, *example)[""],
        "macs_as_in_paper": counting.macs_as_in_paper(with_late_strides(model), *example) if modular else None,
        "macs_as_in_paper_early_strides": counting.macs_as_in_paper(model, *example) if modular else None,
    }


def layer_rows(
    vanilla: nn.Module, hybrid: nn.Module, choice: lowrank.Choice, before: Mapping[str, int], after: Mapping[str, int]
) -> list[dict[str, Any]]:
    """A row for every module with parameters of its own; `before` and `after` are the MACs of the two nets by module."""
    rows: dict[str, dict[str, Any]] = {}
    counted: set[nn.Parameter] = set()  # a tied weight belongs to the first layer that has it
    for layer, module in vanilla.named_modules():
        if any(name in choice.ranks for name in enclosing(layer)):
            continue  # a part of a layer that is factorised as a whole
        own = list(module.parameters(recurse=layer in choice.ranks))
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
    """The names of the modules that contain a module, innermost first; the last is the model, ""."""
    while layer:
        layer = layer.rpartition(".")[0]
        yield layer


def with_late_strides(model: nn.Module) -> nn.Module:
    """The same function as the authors build it: a factorised 1x1 convolution has its stride on its second factor."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, lowrank.LowRank) and isinstance(layer.u, nn.Conv2d) and layer.u.kernel_size == (1, 1):
            layer.u.stride, layer.v.stride = layer.v.stride, layer.u.stride
    return model
