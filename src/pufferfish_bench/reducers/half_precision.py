"""The mean of gradients rounded to 16 bits: conf/reducer/fp16.yaml and bf16.yaml."""

from typing import Any, Literal

import torch
from torch import nn

from pufferfish_bench.core import Message
from pufferfish_bench.reducers.flat import Flat

Dtype = Literal["float16", "bfloat16"]


class HalfPrecision(Flat):
    """Gradients are rounded to a 16-bit format, and also summed in it."""

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
        self.wait_for_all()
        sent = self.allreduce(self.message)
        with self.watch("decode"):
            self.gradient.copy_(self.message)
        return sent
