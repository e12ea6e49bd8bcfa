"""torch's DistributedDataParallel: sends gradients in buckets while the backward pass still computes others."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Range
from pufferfish_bench.core import Message, Reducer
from pufferfish_bench.reducers.half_precision import Dtype

Bucket = dist.GradBucket
Sum = torch.futures.Future[Tensor]
GROUP: Any = None  # the default process group
LARGEST_BUCKET = 25 * 2**20  # bytes: torch's default


class DDP(Reducer):
    """Gradients as float32. Communication overlaps with the backward pass; the section `communicate` is the exposed part:
    from the last gradient to the last mean."""

    overlaps = True
    fixed_buckets = False  # DDP rearranges its buckets after the first step, unless it looks for unused parameters

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        if self.world.store is None:
            raise InputError("reducer=ddp* needs torchrun: torchrun --nproc-per-node 2 -m pufferfish_bench reducer=ddp ...")

    def attach(self, model: nn.Module) -> nn.Module:
        self.sent: list[Message] = []
        self.exposed: list[tuple[Any, Any]] = []  # intervals of the backward pass in which only communication happens
        module = DistributedDataParallel(
            model,
            forward_sync_buffers=False,  # they are averaged before evaluation, as in the flat engine
            gradient_as_bucket_view=True,
            find_unused_parameters=self.fixed_buckets,
        )
        module.register_comm_hook(None, self.hook)
        return module

    def accumulating(self, module: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()

    def hook(self, _: None, bucket: Bucket) -> Sum:
        self.world.arrive()
        before = self.watch.mark()
        total, sizes = self.send(bucket)
        self.sent += [("allreduce", size) for size in sizes]
        if bucket.is_last():
            self.exposed.append((before, None))  # until the end of the backward pass
        elif total.done():
            self.exposed.append((before, self.watch.mark()))
        return total

    def send(self, bucket: Bucket) -> tuple[Sum, list[int]]:
        """A future with the mean of a bucket, and the bytes of the messages sent for it."""
        return default_hooks.allreduce_hook(GROUP, bucket), [bucket.buffer().nbytes]

    def reduce(self) -> list[Message]:
        self.watch.reassign("communicate", self.exposed)  # taken from the section before, the backward pass
        sent, self.sent, self.exposed = self.sent, [], []
        return sent if self.world.size > 1 else []


def bucket_sizes(parameters: Sequence[nn.Parameter]) -> list[int]:
    """The bytes of the messages of a step in the order in which DDP sends them, from its second step on.

    Assumes that gradients become ready in the reverse order of the parameters, as in a network without branches.
    """
    ready: list[Tensor] = [parameter.detach() for parameter in reversed(parameters)]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, int(LARGEST_BUCKET)]
    buckets, _ = dist._compute_bucket_assignment_by_size(ready, limits, [False] * len(ready))
    return [sum(ready[place].nbytes for place in bucket) for bucket in buckets]


class DDPHalfPrecision(DDP):
    """Gradients rounded to 16 bits, by torch's hook."""

    def __init__(self, *, dtype: Dtype, **where: Any):
        super().__init__(**where)
        self.compress = {"float16": default_hooks.fp16_compress_hook, "bfloat16": default_hooks.bf16_compress_hook}[dtype]

    def send(self, bucket: Bucket) -> tuple[Sum, list[int]]:
        return self.compress(GROUP, bucket), [bucket.buffer().numel() * 2]


class DDPPowerSGD(DDP):
    """PowerSGD, by torch's hook; the first `plain_steps` steps are not compressed."""

    supports_loss_scaling = False
    fixed_buckets = True  # its state is stored by bucket, so buckets must be the same after a resume

    def __init__(self, *, rank: Count, plain_steps: Annotated[int, Range(2)], seed: int, **where: Any):
        super().__init__(**where)
        self.state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=plain_steps, random_seed=seed
        )

    def attach(self, model: nn.Module) -> nn.Module:
        warnings.filterwarnings("ignore", message=".*find_unused_parameters=True was specified")
        return super().attach(model)

    def send(self, bucket: Bucket) -> tuple[Sum, list[int]]:
        before = self.state.total_numel_after_compression
        total = powerSGD_hook.powerSGD_hook(self.state, bucket)
        if not bucket.buffer().is_cuda:
            total.wait()  # gloo's threads would send the messages of two buckets in a different order on each rank
        numbers = self.state.total_numel_after_compression - before
        if not numbers:  # a plain step
            return total, [bucket.buffer().nbytes]
        thin = [memory[bucket.index()].nbytes for memory in (self.state.p_memory_dict, self.state.q_memory_dict)]
        return total, [numbers * bucket.buffer().element_size() - sum(thin), *thin]

    def state_dict(self) -> dict[str, Any]:
        state = self.state
        return {"iter": state.iter, "error": state.error_dict, "p": state.p_memory_dict, "q": state.q_memory_dict}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.iter = state["iter"]
        self.state.error_dict, self.state.p_memory_dict, self.state.q_memory_dict = (
            {bucket: tensor.to(self.world.device) for bucket, tensor in state[part].items()} for part in ("error", "p", "q")
        )
