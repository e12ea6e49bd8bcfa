"""What a reducer costs on the gradients of a model: its encoding, decoding, messages and memory.

The real reducers run on the real gradients, in a world of simulated workers.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.advisor.whole_step import Conditions, over_ranks, timed
from pufferfish_bench.core import Message, Reducer
from pufferfish_bench.distributed.simulated import SimulatedWorld
from pufferfish_bench.reducers import ddp
from pufferfish_bench.training.stopwatch import Stopwatch

FEW, MANY = 2, 8  # numbers of workers between which the decoding of gathered messages is taken to be linear

MakeReducer = Callable[..., Reducer]


@dataclass(frozen=True)
class Costs:
    """Of one step of a reducer on one worker."""

    encode: float
    decode: float
    decode_a_worker: float  # what each gathered message adds
    messages: tuple[Message, ...]
    buffers: int  # bytes that the reducer holds, gradients included


class Trial:
    """Runs a reducer again and again on the same gradients."""

    def __init__(self, make: MakeReducer, model: nn.Module, gradients: Sequence[Tensor], workers: int, device: torch.device):
        self.watch = Stopwatch(device=device, untimed_steps=0)
        self.reducer = make(world=SimulatedWorld(size=workers, device=device), watch=self.watch)
        self.model = model
        self.gradients = gradients
        self.reducer.attach(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.taken: list[dict[str, float]] = []
        self.messages: list[Message] = []

    def __call__(self) -> None:
        self.reducer.clear(self.optimizer)
        for parameter, gradient in zip(trained(self.model), self.gradients, strict=True):
            parameter.grad += gradient  # as a backward pass does
        with self.watch.step():
            self.messages = self.reducer.reduce()
        self.taken.append(self.watch.take()[0])

    def median(self, section: str) -> float:
        return statistics.median(step.get(section, 0.0) for step in self.taken[1:])


def measure(label: str, make: MakeReducer, model: nn.Module, gradients: Sequence[Tensor], conditions: Conditions) -> Costs:
    """The costs of a reducer of the flat engine: medians, and the mean over ranks."""
    few = run(label, make, model, gradients, FEW, conditions)
    buffers = sum(storages(few.reducer).values())
    found = {"encode": few.median("encode"), "decode": few.median("decode"), "slope": 0.0}
    messages = tuple(few.messages)
    if any(kind == "allgather" for kind, _ in messages):
        del few
        many = run(label, make, model, gradients, MANY, conditions)
        found["slope"] = min(max(0.0, (many.median("decode") - found["decode"]) / (MANY - FEW)), found["decode"] / FEW)
    found = over_ranks(conditions.world, found)
    return Costs(found["encode"], found["decode"] - FEW * found["slope"], found["slope"], messages, buffers)


def run(
    label: str, make: MakeReducer, model: nn.Module, gradients: Sequence[Tensor], workers: int, conditions: Conditions
) -> Trial:
    trial = Trial(make, model, gradients, workers, conditions.device)
    timed({f"{label}, {workers} workers": trial}, conditions)
    return trial


def of_ddp(model: nn.Module, plain: Costs) -> Costs:
    """DDP sends what a plain allreduce sends, in buckets, and also divides the sum; its gradients are views of the buckets."""
    messages = tuple(("allreduce", size) for size in ddp.bucket_sizes(trained(model)))
    return Costs(0.0, plain.decode, 0.0, messages, sum(size for _, size in messages))


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Copies of the gradients of the last backward pass."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in trained(model)]


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values() if isinstance(tensor, Tensor))


def parameter_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def storages(reducer: Reducer) -> dict[int, int]:
    """The bytes of each piece of memory that a reducer holds besides the parameters, by address."""
    found: dict[int, int] = {}
    for tensor in tensors({name: value for name, value in vars(reducer).items() if name not in ("world", "watch")}):
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def tensors(thing: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, mappings and data classes."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from (tensor for value in thing.values() for tensor in tensors(value))
    elif isinstance(thing, list | tuple):
        yield from (tensor for value in thing for tensor in tensors(value))
    elif is_dataclass(thing) and not isinstance(thing, type):
        yield from (tensor for field in fields(thing) for tensor in tensors(getattr(thing, field.name)))
