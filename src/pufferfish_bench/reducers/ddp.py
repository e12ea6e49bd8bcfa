"""torch's own DistributedDataParallel: sends gradients in buckets while the backward pass is still computing others."""

import warnings
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pufferfish_bench.core import Message, Reducer
from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, Range
from pufferfish_bench.reducers.flat import Dtype

Bucket = dist.GradBucket
Sum = torch.futures.Future[Tensor]


class DDP(Reducer):
    """Gradients as they are. Most of the time they travel is hidden behind the backward pass; `communicate` is what is not:
    from the moment the last gradient is there until the last mean is."""

    fixed_buckets = False  # DDP arranges them anew after the first step, unless it looks for unused parameters

    def check(self, optimizer: Optimizer, clip_norm: float | None) -> None:
        if self.world.store is None:
            raise InputError("reducer=ddp* needs torchrun: torchrun --nproc-per-node 2 -m pufferfish_bench reducer=ddp ...")

    def attach(self, model: nn.Module) -> nn.Module:
        self.sent: list[Message] = []
        self.exposed: list[tuple[Any, Any]] = []  # stretches of the backward pass that only wait
        module = DistributedDataParallel(
            model,
            forward_sync_buffers=False,  # they are averaged before the model is judged, as in the flat engine
            gradient_as_bucket_view=True,
            find_unused_parameters=self.fixed_buckets,
        )
        module.register_comm_hook(None, self.hook)
        return module

    def hook(self, _: None, bucket: Bucket) -> Sum:
        self.world.arrive()
        before = self.watch.mark()
        total, sizes = self.send(bucket)
        self.sent += [("allreduce", size) for size in sizes]
        if bucket.is_last():
            self.exposed.append((before, None))  # to the end
        elif total.done():
            self.exposed.append((before, self.watch.mark()))
        return total

    def send(self, bucket: Bucket) -> tuple[Sum, list[int]]:
        """The mean of a bucket to come, and the bytes of the messages that are sent for it."""
        return default_hooks.allreduce_hook(None, bucket), [bucket.buffer().nbytes]

    def reduce(self) -> list[Message]:
        self.watch.reassign("communicate", self.exposed)  # of the section before: the backward pass
        sent, self.sent, self.exposed = self.sent, [], []
        return sent if self.world.size > 1 else []


class NarrowDDP(DDP):
    """Gradients rounded to 16 bits, by torch's hook."""

    def __init__(self, *, dtype: Dtype, **where: Any):
        super().__init__(**where)
        self.compress = {"float16": default_hooks.fp16_compress_hook, "bfloat16": default_hooks.bf16_compress_hook}[dtype]

    def send(self, bucket: Bucket) -> tuple[Sum, list[int]]:
        return self.compress(None, bucket), [bucket.buffer().numel() * 2]


class PowerDDP(DDP):
    """PowerSGD by torch's hook, which begins after a few plain steps."""

    takes_scaled = False
    fixed_buckets = True  # its state belongs to buckets: they must be the same after a resume

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
            total.wait()  # gloo's threads would send the messages of two buckets in an order of their own on each rank
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
