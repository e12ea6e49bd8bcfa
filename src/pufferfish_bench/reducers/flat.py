"""The flat engine: all gradients live in one buffer, so that a step needs one message."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.core import Message, Reducer


class Flat(Reducer):
    """Gradients are views of one buffer: the backward pass writes directly into the message.

    A step has the sections encode, communicate and decode. With `measure_wait`, a sum of one number before the first message
    measures the time spent waiting for the slowest rank, which is otherwise part of communicate.
    """

    def __init__(self, *, measure_wait: bool, **where: Any):
        super().__init__(**where)
        self.measure_wait = measure_wait

    def attach(self, model: nn.Module) -> nn.Module:
        self.parameters = self.buffer_order([parameter for parameter in model.parameters() if parameter.requires_grad])
        self.gradient = torch.zeros(sum(parameter.numel() for parameter in self.parameters), device=self.world.device)
        self.arrived = self.gradient.new_zeros(1)
        for parameter, view in zip(self.parameters, views(self.parameters, self.gradient), strict=True):
            parameter.grad = view
        return model

    def buffer_order(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """The order of the parameters in the buffer."""
        return parameters

    def clear(self, optimizer: Optimizer) -> None:
        self.gradient.zero_()

    def allreduce(self, tensor: Tensor) -> list[Message]:
        """Replace `tensor` by its sum over all ranks."""
        with self.watch("communicate"):
            self.world.allreduce(tensor)
        return [("allreduce", tensor.nbytes)] if self.world.size > 1 else []

    def wait_for_all(self) -> None:
        """With `measure_wait`: wait for the slowest rank, in a section of its own."""
        if self.measure_wait:
            with self.watch("wait"):
                self.world.allreduce(self.arrived)  # not a barrier, for which the host would wait on a GPU


def views(parameters: Iterable[nn.Parameter], buffer: Tensor) -> Iterator[Tensor]:
    """A view of the buffer for each parameter, one after the other, with the parameter's shape."""
    offset = buffer.storage_offset()
    for parameter in parameters:
        # the same strides as the parameter, so that any dense memory format works
        yield buffer.as_strided(parameter.shape, parameter.stride(), offset)
        offset += parameter.numel()


class AllGatherReducer(Flat):
    """Each rank sends one message to all others; a subclass defines how to encode and decode it."""

    def encode(self) -> Tensor:
        """The message, from the gradients of this rank."""
        raise NotImplementedError

    def decode(self, messages: Tensor) -> None:
        """Set the gradients from the messages of all ranks (ranks, *shape of one message)."""
        raise NotImplementedError

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            message = self.encode()
        self.wait_for_all()
        with self.watch("communicate"):
            messages = self.world.allgather(message)
        with self.watch("decode"):
            self.decode(messages)
        return [("allgather", message.nbytes)] if self.world.size > 1 else []
