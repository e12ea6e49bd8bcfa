"""The cost of compressing the gradients of ResNet-18, in one process that sends nothing: PowerSGD against torch's hook, and
packing Signum's signs against packing them one by one."""

import copy
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pufferfish_bench.bench import interleaved
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.reducers import bits
from pufferfish_bench.reducers.powersgd import PowerSGD
from pufferfish_bench.report import tables
from pufferfish_bench.training.memory import keep_freed_memory
from pufferfish_bench.training.stopwatch import Stopwatch

RANK, ROUNDS = 2, 15

Work = dict[str, Callable[[], Any]]


def resnet(width: float) -> ResNet18:
    return ResNet18(classes=10, width=width, stem_norm=False)


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


def ours(bucket: dist.GradBucket, theirs: nn.Module) -> Callable[[], Any]:
    """PowerSGD of the same gradients by the flat engine, with the same collectives of one rank as torch's hook."""
    watch = Stopwatch(device=torch.device("cpu"), untimed_steps=0)
    reducer = PowerSGD(rank=RANK, seed=1, measure_wait=False, world=single_process(), watch=watch)
    model = copy.deepcopy(theirs)
    reducer.attach(model)
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        model.get_parameter(names[id(parameter)]).grad.copy_(gradient)

    def reduce() -> None:
        reducer.reduce()
        for message in (reducer.first, reducer.second):
            dist.all_reduce(message)

    return reduce


def powersgd(bucket: dist.GradBucket, model: nn.Module, rounds: int) -> dict[str, list[float]]:
    """Seconds of each implementation, in turns."""

    def torchs(*, batched: bool) -> Callable[[], Any]:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, batch_tensors_with_same_shape=batched
        )
        state.iter = 2  # past its uncompressed steps
        return lambda: powerSGD_hook.powerSGD_hook(state, bucket).wait()

    work = {
        "flat engine": ours(bucket, model),
        "torch's hook": torchs(batched=False),
        "torch's hook, shapes batched": torchs(batched=True),
    }
    return interleaved.seconds(work, rounds=rounds)


def one_by_one(negative: Tensor) -> Tensor:
    """Eight booleans to a byte, one at a time."""
    packed = torch.zeros(bits.packed_size(len(negative)), dtype=torch.uint8)
    for place, answer in enumerate(negative.to(torch.int8)):
        packed[place // bits.BYTE] |= int(answer) << place % bits.BYTE
    return packed


def weighed(negative: Tensor) -> Tensor:
    """Eight booleans to a byte, as a sum of uint8 times powers of two along the short dimension."""
    powers = torch.tensor([1 << place for place in range(bits.BYTE)], dtype=torch.uint8)
    return (negative.to(torch.uint8).view(-1, bits.BYTE) * powers).sum(1, dtype=torch.uint8)


def packing(name: str, answers: Tensor, other: Callable[[Tensor], Tensor], rounds: int) -> dict[str, list[float]]:
    work: Work = {f"planes, {len(answers):,} signs": partial(bits.pack, answers), name: partial(other, answers)}
    return interleaved.seconds(work, rounds=rounds)


def measure(*, out: Path, rounds: int = ROUNDS, width: float = 1.0, few: int = 20_000) -> None:
    """Print the table and write the numbers to `out`; packing one by one is slow and gets only `few` signs."""
    keep_freed_memory()  # as in a run
    torch.manual_seed(1)
    model = resnet(width)
    gradients = sum(parameter.numel() for parameter in model.parameters())
    signs = torch.randn(gradients) < 0
    even = signs[: gradients - gradients % bits.BYTE]
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        compressed = within_ddp(model, partial(powersgd, rounds=rounds))
    finally:
        dist.destroy_process_group()
    taken = {
        f"PowerSGD, rank {RANK}": compressed,
        "packing signs": packing("one by one", signs[:few], one_by_one, rounds),
        "packing all signs": packing("int8 times powers of two", even, weighed, rounds),
    }
    table = tables.table(
        "work", "implementation", "ms", "times as long", title=f"{gradients:,} gradients, one process, nothing sent"
    )
    gains = {}
    for work, ways in taken.items():
        first = next(iter(ways.values()))
        for way, seconds in ways.items():
            gains[f"{work}: {way}"] = interleaved.ratio(seconds, first)
            table.add_row(work, way, f"{1000 * statistics.median(seconds):.2f}", f"{gains[f'{work}: {way}']:.2f}")
    tables.show(table, Console())
    settings = {"gradients": gradients, "rank": RANK, "rounds": rounds, "few": few}
    interleaved.write(out / "compression.json", {"settings": settings, "seconds": taken, "times_as_long": gains})
