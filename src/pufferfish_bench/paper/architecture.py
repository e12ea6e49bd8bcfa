"""The layers of a net as the paper describes them: shapes with the inputs first, kernels, strides, ranks, image sizes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import gate_matrices
from pufferfish_bench.models.transformer import Attention, Transformer

NETS = ("vanilla", "hybrid")
FULL_RANK = "full-rank"
ATTRIBUTES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("stride", "padding"),
    nn.Dropout: ("p",),
    nn.LayerNorm: ("eps",),
    Attention: ("heads",),
    Transformer: ("padding",),
}


def inspect(
    build: Callable[[], nn.Module], sample: Callable[[], list[Tensor]], hybrid: Mapping[str, Any], kind: str
) -> dict[str, Any]:
    """Everything that the paper may print about the layers of a net, by <layer>.<what>. Only shapes are computed."""
    if kind not in NETS:
        raise InputError(f"net: {kind} is not known; allowed: {', '.join(NETS)}")
    with torch.device("meta"):
        full_rank, net, example = build(), build(), sample()
    if kind == "hybrid":
        layers = lowrank.resolve(net, example, lowrank.arguments(hybrid))
        lowrank.restructure(net, lowrank.choose(net, **layers).ranks)
    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        found |= {f"{name}.{what}".lstrip("."): value for what, value in of_module(module).items()}
    total = counting.parameters(full_rank)
    for name, part in full_rank.named_children():
        found[f"{name}.percent_of_full_rank_parameters"] = round(100 * counting.parameters(part) / total, 4)
    return found | {f"{name}.image": size for name, size in image_sizes(net, example).items()}


def of_module(module: nn.Module) -> dict[str, Any]:
    """Shapes and attributes of a module itself, without those of the modules in it."""
    found: dict[str, Any] = {f"{name}.{gate}": inputs_first(matrix) for (name, gate), matrix in gate_matrices(module).items()}
    if not found:
        swapped = isinstance(module, nn.Linear | nn.Conv2d)
        for name, parameter in module.named_parameters(recurse=False):
            found[name] = inputs_first(parameter) if swapped and parameter.dim() > 1 else list(parameter.shape)
    for kind, names in ATTRIBUTES.items():
        if isinstance(module, kind):
            found |= {name: one_number(getattr(module, name)) for name in names}
    if isinstance(module, nn.Conv2d | nn.Linear):
        found |= {"rank": FULL_RANK, **filters(module, module)}
    if isinstance(module, lowrank.LowRank):
        found |= {"rank": module.u.weight.shape[0], **filters(module.u, module.v)}
    if isinstance(module, nn.Sequential | nn.ModuleList):
        found["length"] = len(module)
    return found


def inputs_first(weight: Tensor) -> list[int]:
    """The shape of a weight (out, in, ...) as the paper writes it: in, out, ..."""
    return [weight.shape[1], weight.shape[0], *weight.shape[2:]]


def filters(first: nn.Module, last: nn.Module) -> dict[str, Any]:
    """Kernel and number of filters of a convolution, or the outputs of a linear layer; a factored one has two parts."""
    out, *kernel = last.weight.shape[0], *first.weight.shape[2:]
    return {"filters": [*kernel, out]} if kernel else {"outputs": out}


def one_number(value: Any) -> Any:
    """The number behind a stride such as (2, 2); anything else as it is."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def image_sizes(net: nn.Module, example: list[Tensor]) -> dict[str, list[int]]:
    """Height and width of the images that each module returns."""
    sizes: dict[str, list[int]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() == 4:
                sizes[name] = list(output.shape[2:])

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in net.named_modules() if name]
    try:
        counting.forward(net, *example)
    finally:
        for handle in handles:
            handle.remove()
    return sizes
