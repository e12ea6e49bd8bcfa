"""The flat engine: all gradients live in one buffer, so that a step is one message; and the reducer that sends it as it is."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.core import Message, Reducer
from pufferfish_bench.stopwatch import Stopwatch
from pufferfish_bench.world import World


class Flat(Reducer):
    """Gradients as views of one buffer: the backward pass writes into the message, nothing is copied together.

    Sections of a step: encode, communicate, decode; with `measure_wait` a barrier before the first message takes the
    waiting for the slowest rank out of communicate.
    """

    def __init__(self, *, measure_wait: bool, **where: Any):
        super().__init__(**where)
        self.measure_wait = measure_wait

    def attach(self, model: nn.Module) -> nn.Module:
        self.parameters = self.ordered([parameter for parameter in model.parameters() if parameter.requires_grad])
        self.gradient = torch.zeros(sum(parameter.numel() for parameter in self.parameters), device=self.world.device)
        place = 0
        for parameter in self.parameters:
            parameter.grad = self.gradient.as_strided(parameter.shape, parameter.stride(), place)  # dense, whatever its format
            place += parameter.numel()
        return model

    def ordered(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """The order in the buffer."""
        return parameters

    def clear(self, optimizer: Optimizer) -> None:
        self.gradient.zero_()

    def allreduce(self, tensor: Tensor) -> list[Message]:
        """Replace it by its sum over all ranks."""
        with self.watch("communicate"):
            self.world.allreduce(tensor)
        return [("allreduce", tensor.nbytes)] if self.world.size > 1 else []

    def meet(self) -> None:
        """Wait for the slowest rank, in a section of its own, if asked."""
        if self.measure_wait:
            with self.watch("wait"):
                self.world.barrier()


class AllReduce(Flat):
    """The mean itself."""

    def reduce(self) -> list[Message]:
        self.meet()
        sent = self.allreduce(self.gradient)
        with self.watch("decode"):
            self.gradient /= self.world.size
        return sent


Dtype = Literal["float16", "bfloat16"]


class Narrow(Flat):
    """The mean of gradients rounded to a format of 16 bits, which is also what they are summed in."""

    def __init__(self, *, dtype: Dtype, **how: Any):
        super().__init__(**how)
        self.dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype]

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        self.message = torch.empty_like(self.gradient, dtype=self.dtype)
        return module

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            self.message.copy_(self.gradient.div_(self.world.size))  # before the sum, which could overflow
        self.meet()
        sent = self.allreduce(self.message)
        with self.watch("decode"):
            self.gradient.copy_(self.message)
        return sent


class Gathered(Flat):
    """One message a rank, which all others are given; what they make of it may be anything."""

    def encode(self) -> Tensor:
        """The message, from this rank's gradients."""
        raise NotImplementedError

    def decode(self, messages: Tensor) -> None:
        """Gradients from the messages of all ranks (ranks, *shape of one)."""
        raise NotImplementedError

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            message = self.encode()
        self.meet()
        with self.watch("communicate"):
            messages = self.world.allgather(message)
        with self.watch("decode"):
            self.decode(messages)
        return [("allgather", message.nbytes)] if self.world.size > 1 else []


def allreduce(*, measure_wait: bool, world: World, watch: Stopwatch) -> Reducer:
    """The mean of the gradients; in one process, the gradients."""
    if world.size > 1:
        return AllReduce(measure_wait=measure_wait, world=world, watch=watch)
    return Reducer(world=world, watch=watch)
