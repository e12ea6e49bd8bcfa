"""Language modelling: the text in parallel columns, read in segments, with the LSTM state carried from one to the next."""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Task
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import sharding

States = Sequence[tuple[Tensor, Tensor]]
Batch = tuple[Tensor, Tensor, bool]  # words (time, columns), the words that follow them, whether the text starts here


def carry_every_layer(ends: States) -> States:
    """Each layer starts the next segment from its own last state."""
    return ends


def carry_as_in_authors_code(ends: States) -> States:
    """As the authors' code does: the first layer starts from the last layer's state, all others from zero."""
    return [ends[-1], *((torch.zeros_like(h), torch.zeros_like(c)) for h, c in ends[1:])]


StateCarry = Literal["correct", "official"]
CARRY = {"correct": carry_every_layer, "official": carry_as_in_authors_code}


class LanguageModelling(Task):
    """Prediction of the next word, trained by truncated back-propagation through time and evaluated by perplexity."""

    metric = "val_ppl"
    higher_is_better = False

    def __init__(
        self, *, train: Tensor, val: Tensor, test: Tensor, batch_size: int, test_batch_size: int, segment: int, carry: str,
        world: World,
    ):  # fmt: skip
        for name, value in (
            ("batch_size", batch_size),
            ("dataset.test_batch_size", test_batch_size),
            ("dataset.segment", segment),
        ):
            if value < 1:
                raise InputError(f"{name}={value} must be at least 1")
        if carry not in CARRY:
            raise InputError(f"dataset.carry={carry} is not known; allowed: {', '.join(CARRY)}")
        self.world = world
        # each rank reads some of the columns: batch_size of them in training, an equal share in evaluation
        mine = sharding.evaluation_range(world.size * batch_size, rank=world.rank, size=world.size)
        self.train = columns(train, world.size * batch_size)[:, mine.start : mine.stop].to(world.device)
        mine = sharding.evaluation_range(test_batch_size, rank=world.rank, size=world.size)
        self.val, self.test = (columns(text, test_batch_size)[:, mine.start : mine.stop].to(world.device) for text in (val, test))
        self.segment = segment
        self.carry = CARRY[carry]
        self.states: States | None = None

    def steps(self, epoch: int) -> int:
        return math.ceil((len(self.train) - 1) / self.segment)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        yield from segments(self.train, self.segment, start)

    def loss(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        words, following, begins = batch
        losses, ends = model(words, None if begins else self.states, following)
        self.states = self.carry([(h.detach(), c.detach()) for h, c in ends])
        return losses.mean()

    def count(self, batch: Batch) -> int:
        return batch[1].numel()

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        return {"train_ppl": perplexity(mean_loss)}

    def evaluate(self, model: Callable[..., Any]) -> dict[str, float]:
        return {f"{name}_ppl": perplexity(self.mean_loss(model, text)) for name, text in (("val", self.val), ("test", self.test))}

    def mean_loss(self, model: Callable[..., Any], text: Tensor) -> float:
        states = None
        sums = torch.zeros(2, dtype=torch.float64, device=self.world.device)  # sum and number of the losses
        for words, following, _ in segments(text, self.segment, 0) if text.shape[1] else ():
            losses, ends = model(words, states, following)
            states = self.carry(ends)
            sums[0] += losses.detach().sum(dtype=torch.float64)
            sums[1] += following.numel()
        self.world.allreduce(sums)
        return float(sums[0] / sums[1])

    def state_dict(self) -> dict[str, Any]:
        return {"states": self.states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states, device = state["states"], self.train.device  # checkpoints are loaded on the CPU
        self.states = states and [(h.to(device), c.to(device)) for h, c in states]


def columns(text: Tensor, count: int) -> Tensor:
    """A text (words) as (rows, count): each column is a contiguous part of it. The remainder is dropped."""
    rows = len(text) // count
    if rows < 2:
        raise InputError(f"{len(text)} words are too few for {count} columns: use a smaller batch_size or fewer processes")
    return text[: rows * count].view(count, rows).t().contiguous()


def segments(text: Tensor, length: int, start: int) -> Generator[Batch]:
    """Consecutive segments of at most `length` rows, starting with segment `start`, each with the rows shifted by one."""
    last = len(text) - 1
    for first in range(start * length, last, length):
        end = min(first + length, last)
        yield text[first:end], text[first + 1 : end + 1], first == 0


def perplexity(mean_loss: float) -> float:
    return math.exp(mean_loss) if mean_loss < 700 else math.inf
