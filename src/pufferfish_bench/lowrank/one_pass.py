"""One forward pass of a sample, which leaves the model and the random numbers as they were."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting


def run(model: nn.Module, sample: Sequence[Any]) -> None:
    """Call the model with the arguments in `sample` once, in evaluation mode; tensors may be on any device.

    What the model raises becomes an InputError.
    """
    try:
        with unchanged(model):
            counting.forward(model, *on_device_of(model, sample))
    except InputError:
        raise
    except Exception as error:  # the code of a model may raise anything
        shapes = " and ".join("x".join(map(str, value.shape)) if isinstance(value, Tensor) else str(value) for value in sample)
        raise InputError(
            f"the model fails on the sample, {shapes} ({in_words(error)}): sample must hold the arguments of one forward pass"
        ) from error


def in_words(error: Exception) -> str:
    """The type and the message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")


def on_device_of(model: nn.Module, sample: Sequence[Any]) -> list[Any]:
    """The sample on the device of the model."""
    first = next(model.parameters(), None)
    if first is None:
        raise InputError("the model has no parameters: there is nothing to factorise")
    return [value.to(first.device) if isinstance(value, Tensor) else value for value in sample]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the state of the random number generators afterwards."""
    before = [(module, dict(module._buffers)) for module in model.modules()]
    values = {buffer: buffer.detach().clone() for buffer in model.buffers() if not buffer.is_meta}
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, buffers in before:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in values.items():
                buffer.copy_(value)
