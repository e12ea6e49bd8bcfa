"""Removes channels from a network: traces which layers write and read each channel, and leaves a smaller dense network.

A channel is written by a convolution, scaled by a BatchNorm and read by the next layers. Where two paths are added, their
channels are the same: such a channel can only be removed if it is masked on every path that writes it.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pufferfish_bench.base.errors import InputError

Masks = Mapping[str, Tensor]  # name of a BatchNorm2d -> True for the channels it keeps
Weighted = nn.Conv2d | nn.Linear
ADD = (operator.add, operator.iadd, torch.add)
# These keep the order of channels, and map a channel of zeros to zeros.
MODULES = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout, nn.Identity)
FUNCTIONS = (F.relu, torch.relu, F.max_pool2d, F.avg_pool2d, F.dropout, torch.flatten)
METHODS = ("relu", "mean", "flatten")


@dataclass
class Channels:
    """A group of channels that can only be removed together: they are passed on, or added to each other."""

    count: int
    writers: list[str] = field(default_factory=list)  # convolutions
    norms: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)  # convolutions and linear layers
    fixed: bool = False  # inputs and outputs of the network cannot be removed

    def join(self, other: "Channels") -> None:
        self.writers += other.writers
        self.norms += other.norms
        self.readers += other.readers
        self.fixed |= other.fixed

    def kept(self, masks: Masks) -> Tensor:
        """The channels that some path keeps; all of them if a path has no BatchNorm that could mask it."""
        if self.fixed or len(self.norms) < len(self.writers):
            return torch.ones(self.count, dtype=torch.bool)
        return torch.stack([masks[norm].cpu() for norm in self.norms]).any(0)


def find_channels(model: nn.Module) -> list[Channels]:
    """All groups of channels of a network; an InputError if the network has an operation that is not supported."""
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
            at[node] = read_and_write(str(node.target), layer, *sources)
        elif isinstance(layer, nn.BatchNorm2d):
            at[node] = sources[0]
            at[node].norms.append(str(node.target))
            if len(node.all_input_nodes[0].users) > 1:
                at[node].fixed = True  # another layer reads the channels before they are masked
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


def read_and_write(name: str, layer: Weighted, source: Channels) -> Channels:
    """Note that a layer reads the channels of `source`; return those that it writes."""
    if isinstance(layer, nn.Conv2d) and layer.groups != 1:
        raise InputError(f"channels cannot be removed from the grouped convolution {name}")
    source.readers.append(name)
    if isinstance(layer, nn.Linear) and layer.in_features != source.count:
        source.fixed = True  # it reads pixels, not channels
    return Channels(len(layer.weight), writers=[name])


def silence(model: nn.Module, masks: Masks) -> None:
    """Set the masked channels to zero, in place. `remove` leaves a network that computes the same."""
    with torch.no_grad():
        for name, mask in masks.items():
            norm = model.get_submodule(name)
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.mul_(mask.to(norm.weight))
                norm.bias.mul_(mask.to(norm.bias))


def remove(model: nn.Module, masks: Masks) -> dict[str, list[int]]:
    """Remove the masked channels, in place; the network computes the same as with these channels set to zero.

    `masks` has an entry for every BatchNorm2d of the model. Returns the number of inputs and outputs that each convolution
    and linear layer is left with.
    """
    silence(model, masks)
    for channels in find_channels(model):
        kept = channels.kept(masks)
        if not kept.all():
            keep_only(model, channels, kept.nonzero().squeeze(1))
    return {name: [layer.weight.shape[1], layer.weight.shape[0]] for name, layer in weighted_layers(model)}


def resize(model: nn.Module, sizes: Mapping[str, Sequence[int]]) -> None:
    """Give a network the layer sizes that `remove` returned, so that the tensors of the pruned network can be loaded."""
    layers = dict(weighted_layers(model))
    for name, counts in sizes.items():
        if name not in layers:
            raise InputError(f"the model has no convolution or linear layer {name!r}")
        outputs, inputs = layers[name].weight.shape[:2]
        if not all(type(count) is int and 1 <= count <= full for count, full in zip(counts, (inputs, outputs), strict=True)):
            raise InputError(f"{name} cannot be left with {counts} of its {inputs} inputs and {outputs} outputs")
    for channels in find_channels(model):
        (count,) = {sizes[name][1] for name in channels.writers} or {channels.count}
        if count != channels.count:
            keep_only(model, channels, torch.arange(count))


def weighted_layers(model: nn.Module) -> Iterator[tuple[str, Weighted]]:
    yield from ((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear))


def keep_only(model: nn.Module, channels: Channels, indices: Tensor) -> None:
    """Remove all but these channels from the layers that write, normalise or read them."""
    for name in (*channels.writers, *channels.norms):
        keep_outputs(model.get_submodule(name), indices)
    for name in channels.readers:
        keep_inputs(model.get_submodule(name), indices)


def keep_outputs(layer: nn.Module, indices: Tensor) -> None:
    """Leave a convolution or a BatchNorm with these of its outputs."""
    for name, tensor in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
        if tensor.ndim:
            replace_tensor(layer, name, tensor.detach()[indices.to(tensor.device)])
    setattr(layer, "num_features" if isinstance(layer, nn.BatchNorm2d) else "out_channels", len(indices))


def keep_inputs(layer: nn.Module, indices: Tensor) -> None:
    """Leave a convolution or a linear layer with these of its inputs."""
    weight = layer.get_parameter("weight").detach()
    replace_tensor(layer, "weight", weight[:, indices.to(weight.device)])
    setattr(layer, "in_features" if isinstance(layer, nn.Linear) else "in_channels", len(indices))


def replace_tensor(layer: nn.Module, name: str, tensor: Tensor) -> None:
    """Put `tensor` in the place of a parameter or a buffer, in the same memory format."""
    old = getattr(layer, name)
    memory_format = torch.channels_last if old.ndim == 4 and not old.is_contiguous() else torch.contiguous_format
    tensor = tensor.clone(memory_format=memory_format)
    setattr(layer, name, nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor)
