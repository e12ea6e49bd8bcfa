"""Which channels of a network belong together, and the smaller dense network without some of them; knows no model and no method.

A channel begins at a convolution, is scaled by a BatchNorm, and ends in the layers that read it. Where paths are added, their
channels are the same: one can only go if no path that writes it still says anything.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pufferfish_bench.errors import InputError

Masks = Mapping[str, Tensor]  # name of a BatchNorm -> which of its channels say anything
ADD = (operator.add, operator.iadd, torch.add)
# what leaves channels where they are, and nothing where there was nothing
MODULES = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Identity)
FUNCTIONS = (F.relu, torch.relu, F.max_pool2d, F.avg_pool2d, F.dropout, torch.flatten)
METHODS = ("relu", "mean", "flatten")


@dataclass
class Channels:
    """Channels that are one: added together, or passed on."""

    count: int
    writers: list[str] = field(default_factory=list)  # convolutions
    norms: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)  # convolutions and linear layers
    fixed: bool = False  # the network's own inputs and outputs

    def join(self, other: "Channels") -> None:
        self.writers += other.writers
        self.norms += other.norms
        self.readers += other.readers
        self.fixed |= other.fixed

    def kept(self, masks: Masks) -> Tensor:
        """Which of them some path still says something on; all where a path has no BatchNorm to silence it."""
        if self.fixed or len(self.norms) < len(self.writers):
            return torch.ones(self.count, dtype=torch.bool)
        return torch.stack([masks[norm].cpu() for norm in self.norms]).any(0)


def followed(model: nn.Module) -> list[Channels]:
    """All channels of a network, from where they are written to where they are read."""
    at: dict[fx.Node, Channels] = {}
    modules = dict(model.named_modules())
    for node in fx.symbolic_trace(model).graph.nodes:
        sources = [at[argument] for argument in node.all_input_nodes]
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        if node.op == "placeholder":
            at[node] = Channels(0, fixed=True)
        elif node.op == "output":
            for source in sources:
                source.fixed = True
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            if getattr(layer, "groups", 1) != 1:
                raise InputError(f"channels cannot be removed from the grouped convolution {node.target}")
            (source,) = sources
            source.readers.append(str(node.target))
            if isinstance(layer, nn.Linear) and layer.in_features != source.count:
                source.fixed = True  # it reads pixels, not channels
            at[node] = Channels(len(layer.weight), writers=[str(node.target)])
        elif isinstance(layer, nn.BatchNorm2d):
            at[node] = sources[0]
            at[node].norms.append(str(node.target))
            if len(node.all_input_nodes[0].users) > 1:
                at[node].fixed = True  # someone reads what it does not silence
        elif node.target in ADD and len(sources) == 2:
            at[node] = sources[0]
            if sources[1] is not sources[0]:
                sources[0].join(sources[1])
                at.update({key: sources[0] for key, value in at.items() if value is sources[1]})
        elif isinstance(layer, MODULES) or node.target in FUNCTIONS or node.target in METHODS:
            at[node] = sources[0]
        else:
            raise InputError(f"channels cannot be followed through {node.target}")
    return list({id(channels): channels for channels in at.values()}.values())


def silence(model: nn.Module, masks: Masks) -> None:
    """Let the masked channels say nothing: the network that `remove` makes smaller."""
    with torch.no_grad():
        for name, mask in masks.items():
            norm = model.get_submodule(name)
            norm.weight.mul_(mask.to(norm.weight))
            norm.bias.mul_(mask.to(norm.bias))


def remove(model: nn.Module, masks: Masks) -> dict[str, list[int]]:
    """Take the masked channels out, in place: the network computes what it computes with them silenced.

    Returns the channels (inputs, outputs) that each convolution and linear layer is left with.
    """
    silence(model, masks)
    for channels in followed(model):
        kept = channels.kept(masks)
        if kept.all():
            continue
        places = kept.nonzero().squeeze(1)
        for name in (*channels.writers, *channels.norms):
            narrow_outputs(model.get_submodule(name), places)
        for name in channels.readers:
            narrow_inputs(model.get_submodule(name), places)
    return shapes(model)


def resize(model: nn.Module, left: Mapping[str, Sequence[int]]) -> None:
    """Give a network the shapes that `remove` returned; which channels those are is for the tensors to say."""
    there = dict(weighted(model))
    for name, counts in left.items():
        if name not in there:
            raise InputError(f"{name!r} names no convolution or linear layer")
        outputs, inputs = there[name].weight.shape[:2]
        if not all(type(count) is int and 1 <= count <= full for count, full in zip(counts, (inputs, outputs), strict=True)):
            raise InputError(f"{name} cannot be left with {counts} of its {inputs} inputs and {outputs} outputs")
    for channels in followed(model):
        (count,) = {left[name][1] for name in channels.writers} or {None}
        if count is None or count == channels.count:
            continue
        places = torch.arange(count)
        for name in (*channels.writers, *channels.norms):
            narrow_outputs(model.get_submodule(name), places)
        for name in channels.readers:
            narrow_inputs(model.get_submodule(name), places)


def shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: [layer.weight.shape[1], layer.weight.shape[0]] for name, layer in weighted(model)}


def weighted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear))


def narrow_outputs(layer: nn.Module, places: Tensor) -> None:
    """Leave a convolution or a BatchNorm with these of its outputs."""
    places = places.to(layer.weight.device)
    for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
        if tensor.ndim:
            put(layer, name, tensor.detach()[places])
    if isinstance(layer, nn.BatchNorm2d):
        layer.num_features = len(places)
    else:
        layer.out_channels = len(places)


def narrow_inputs(layer: nn.Module, places: Tensor) -> None:
    """Leave a convolution or a linear layer with these of its inputs."""
    put(layer, "weight", layer.weight.detach()[:, places.to(layer.weight.device)])
    setattr(layer, "in_features" if isinstance(layer, nn.Linear) else "in_channels", len(places))


def put(layer: nn.Module, name: str, tensor: Tensor) -> None:
    old = getattr(layer, name)
    format = torch.channels_last if old.ndim == 4 and not old.is_contiguous() else torch.contiguous_format
    tensor = tensor.clone(memory_format=format)
    setattr(layer, name, nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor)
