"""The cost of compressing the gradients of ResNet-18 in one process: PowerSGD against torch's hook, and Signum's votes against a
sum of signs as int8."""

import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.distributed.world import World, single_process
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.reducers.powersgd import PowerSGD
from pufferfish_bench.reducers.signum import Signum
from pufferfish_bench.training.memory import keep_freed_memory
from pufferfish_bench.training.stopwatch import Stopwatch

RANKS = (2, 4)
QUICK = {"rounds": 5}
OURS, ADDING, PASSES = "flat engine", "flat engine, gradient added", "two passes over the gradient"
HOOK, BATCHED = "torch's hook", "torch's hook, shapes batched"
OURS_SIGNS, INT64, INT8, MOMENTUM_ONLY = "packed signs", "int8 sum, accumulated in int64", "int8 sum", "momentum alone"
MOMENTUM = 0.9

Seconds = dict[str, list[float]]


class SendingWorld(World):
    """One process that nevertheless calls the collectives, as torch's hook does."""

    def allreduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)


def measure(*, rounds: int = 15, width: float = 1.0, workers: int = 8) -> tuple[list[Row], dict[str, Any]]:
    """`width` multiplies the width of ResNet-18."""
    keep_freed_memory()  # as in a run
    torch.manual_seed(1)
    model = ResNet18(classes=10, width=width, stem_norm=False)
    rows, figures = [], {"gradients": sum(parameter.numel() for parameter in model.parameters())}
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        for rank in RANKS:
            taken = within_ddp(copy.deepcopy(model), partial(powersgd, rank=rank, rounds=rounds))
            note = (
                "The backward pass adds the gradient to the error of the step before, so that this is not timed here, while the "
                f"hook's addition is: with it {interleaved.ratio(taken[ADDING], taken[HOOK]):.2f}. Time over that of the hook "
                f"with shapes batched: {interleaved.ratio(taken[OURS], taken[BATCHED]):.2f}. The limit is two passes over the "
                "gradient."
            )
            sides = [(name, taken[name]) for name in (OURS, HOOK)]
            limit = interleaved.ratio(taken[PASSES], taken[HOOK])
            rows.append(compare(f"powersgd_{rank}", *sides, limit=limit, note=note))
            figures[f"PowerSGD, rank {rank}"] = taken
    finally:
        dist.destroy_process_group()
    taken = signum(model, workers, rounds)
    share = statistics.median(taken[MOMENTUM_ONLY]) / statistics.median(taken[INT8])
    note = (
        f"Momentum, signs and the majority of {workers} workers. The rival stores signs as int8 and also sums them in int8, "
        f"which serves up to 127 workers; with torch's default, a sum in int64, the ratio is "
        f"{interleaved.ratio(taken[OURS_SIGNS], taken[INT64]):.2f}. The update of the momentum, which both sides do, is "
        f"{share:.2f} of the rival's time. Ours sends an eighth of the bytes, which this row does not time."
    )
    rows.append(compare("signum", (OURS_SIGNS, taken[OURS_SIGNS]), (INT8, taken[INT8]), note=note))
    return rows, figures | {"Signum": taken}


def within_ddp(model: nn.Module, measure: Callable[[dist.GradBucket, nn.Module], Any]) -> Any:
    """The result of `measure` for one DDP bucket with all gradients of a model; only DDP can create a GradBucket."""
    found = []

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        found.append(measure(bucket, module.module))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    module = DistributedDataParallel(model, bucket_cap_mb=1000)
    module.register_comm_hook(None, hook)
    module(torch.randn(2, 3, 32, 32)).sum().backward()
    (only,) = found
    return only


class Gradients:
    """Gives a reducer the same gradients before each of its turns, the way a backward pass does: by adding to cleared ones."""

    def __init__(self, reducer: Any, model: nn.Module, gradients: dict[str, Tensor]):
        self.reducer = reducer
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        reducer.attach(model)
        self.pairs = [(model.get_parameter(name), gradient) for name, gradient in gradients.items()]

    def restore(self) -> None:
        self.reducer.clear(self.optimizer)
        for parameter, gradient in self.pairs:
            parameter.grad.add_(gradient)


def powersgd(bucket: dist.GradBucket, theirs: nn.Module, *, rank: int, rounds: int) -> Seconds:
    """Seconds of each implementation, with the same gradients and the same collectives of one process."""
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    gradients = {
        names[id(parameter)]: gradient.clone()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    }
    whole = bucket.buffer().clone()
    watch = Stopwatch(device=torch.device("cpu"), untimed_steps=0)
    world = SendingWorld(rank=0, size=1, device=torch.device("cpu"))
    reducer = PowerSGD(rank=rank, seed=1, measure_wait=False, world=world, watch=watch)
    mine = Gradients(reducer, copy.deepcopy(theirs), gradients)

    def torchs(*, batched: bool) -> Callable[[], Any]:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, batch_tensors_with_same_shape=batched
        )
        state.iter = 2  # past its uncompressed steps
        return lambda: powerSGD_hook.powerSGD_hook(state, bucket).wait()

    passed = whole.clone()
    work = {
        OURS: reducer.reduce,
        ADDING: lambda: (mine.restore(), reducer.reduce()),
        HOOK: torchs(batched=False),
        BATCHED: torchs(batched=True),
        PASSES: lambda: passed.mul_(0.5).mul_(2.0),
    }
    before = {OURS: mine.restore} | dict.fromkeys((HOOK, BATCHED), partial(bucket.buffer().copy_, whole))
    return interleaved.seconds(work, before=before, rounds=rounds)


def signum(model: nn.Module, workers: int, rounds: int) -> Seconds:
    """Seconds from a worker's gradients to the majority of all signs: ours, and the sum of int8 signs with two accumulators."""
    gradients = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    watch = Stopwatch(device=torch.device("cpu"), untimed_steps=0)
    reducer = Signum(momentum=MOMENTUM, measure_wait=False, world=single_process(), watch=watch)
    mine = Gradients(reducer, copy.deepcopy(model), gradients)
    mine.restore()
    message = reducer.encode()
    messages = torch.randint(256, (workers, *message.shape), dtype=torch.uint8)
    gradient = torch.cat([each.flatten() for each in gradients.values()])
    momentum = gradient.clone()
    signs = torch.randint(-1, 2, (workers, len(gradient)), dtype=torch.int8)

    def ours() -> None:
        messages[0] = reducer.encode()
        reducer.decode(messages)

    def int8_sum(**accumulator: torch.dtype) -> None:
        momentum.lerp_(gradient, 1 - MOMENTUM)
        signs[0] = momentum.sign()
        gradient.copy_(signs.sum(0, **accumulator).sign_())

    work = {
        OURS_SIGNS: ours,
        INT64: int8_sum,
        INT8: partial(int8_sum, dtype=torch.int8),
        MOMENTUM_ONLY: lambda: momentum.lerp_(gradient, 1 - MOMENTUM),
    }
    return interleaved.seconds(work, rounds=rounds)
