"""Language modelling: the text in parallel columns, read in segments, with the LSTM state carried from one to the next.

A model with an attribute `masking` restores masked words of a segment instead of predicting the next ones.
"""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Task
from pufferfish_bench.distributed.world import World
from pufferfish_bench.models.masking import Masking
from pufferfish_bench.tasks import sharding

States = Sequence[tuple[Tensor, Tensor]]
# words (time, columns), those to predict (the next ones, or the masked ones among NOTHING), whether the text starts here;
# of a part of a batch also which columns of the batch it has
Batch = tuple[Tensor, Tensor, bool] | tuple[Tensor, Tensor, bool, slice]


def carry_every_layer(ends: States) -> States:
    """Each layer starts the next segment from its own last state."""
    return ends


def carry_as_in_authors_code(ends: States) -> States:
    """As the authors' code does: the first layer starts from the last layer's state, all others from zero."""
    return [ends[-1], *((torch.zeros_like(h), torch.zeros_like(c)) for h, c in ends[1:])]


NOTHING = -1  # in place of a word that is not to be predicted
WHOLE = slice(None)
MASKS = 1 << 41  # keeps masks apart from other uses of the same seed, such as that of a synthetic text

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
        self.train_words = len(train)
        self.columns = world.size * batch_size
        self.train = self.own_columns(train, self.columns)
        self.val, self.test = (self.own_columns(text, test_batch_size) for text in (val, test))
        self.masks: dict[str, Tensor] = {}  # of the validation and test text, if the model restores masked words
        self.evaluated = {"val": val, "test": test}
        self.test_columns = test_batch_size
        self.segment = segment
        self.carry = CARRY[carry]
        self.carries_every_state = carry == "correct"
        self.masking: Masking | None = None
        self.states: States | None = None
        self.ends: list[States] = []  # of the parts of a batch so far

    def own_columns(self, text: Tensor, count: int) -> Tensor:
        """The columns of a text, or of a mask of it, that this rank reads."""
        mine = sharding.evaluation_range(count, rank=self.world.rank, size=self.world.size)
        return columns(text, count)[:, mine.start : mine.stop].to(self.world.device)

    def prepare(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Find out what the model predicts, and whether it accepts a segment."""
        self.masking = getattr(model, "masking", None)
        training = model.training
        try:
            with torch.no_grad():
                _, ends = model.eval()(self.train[: self.segment, :1])
        except (RuntimeError, LookupError, ValueError, AssertionError) as error:
            raise InputError(
                f"the model fails on a segment of {min(self.segment, len(self.train))} words ({' '.join(str(error).split())}): "
                "check dataset.segment and dataset.vocabulary"
            ) from error
        model.train(training)
        if not len(ends) and not self.carries_every_state:
            raise InputError("dataset.carry=official is for models with hidden states, and this one has none: use correct")
        if self.masking:  # the same in all runs and for any number of ranks
            drawn = {name: masked_words(len(text), self.masking.share) for name, text in self.evaluated.items()}
            self.masks = {name: self.own_columns(mask, self.test_columns) for name, mask in drawn.items()}

    def steps(self, epoch: int) -> int:
        return math.ceil((len(self.train) - 1) / self.segment)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        mask = None
        if self.masking is not None:
            mask = self.own_columns(masked_words(self.train_words, self.masking.share, self.masking.seed, epoch), self.columns)
        yield from self.segments(self.train, mask, start)

    def loss(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        words, following, begins, *part = batch
        states = None if begins or self.states is None else columns_of(self.states, *part)
        losses, ends = model(words, states, following)
        self.keep(self.carry([(h.detach(), c.detach()) for h, c in ends]), *part)
        return losses.mean() if self.masking is None else losses.sum() / self.count(batch)

    def keep(self, ends: States, part: slice = WHOLE) -> None:
        """Carry the states to the next batch. Those of the parts of a batch wait for its last part."""
        self.ends = [*(self.ends if part.start else ()), ends]
        if part.stop in (None, self.train.shape[1]):
            self.states, self.ends = ends if part == WHOLE else joined(self.ends), []

    def count(self, batch: Batch) -> Tensor | int:
        return batch[1].numel() if self.masking is None else (batch[1] >= 0).sum().clamp(min=1)

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Parts of the columns."""
        words, following, begins, *_ = batch
        return [(words[:, part], following[:, part], begins, part) for part in sharding.parts_of(words.shape[1], parts)]

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        return {"train_ppl": perplexity(mean_loss)}

    def evaluate(self, model: Callable[..., Any]) -> dict[str, float]:
        """The perplexity of the next words, or of the masked ones."""
        texts = {"val": self.val, "test": self.test}
        return {f"{name}_ppl": perplexity(self.mean_loss(model, text, self.masks.get(name))) for name, text in texts.items()}

    def segments(self, text: Tensor, mask: Tensor | None, start: int = 0) -> Generator[Batch]:
        if self.masking is None or mask is None:
            yield from segments(text, self.segment, start)
        else:
            yield from masked_segments(text, mask, self.masking, self.segment, start)

    def mean_loss(self, model: Callable[..., Any], text: Tensor, mask: Tensor | None = None) -> float:
        states = None
        sums = torch.zeros(2, dtype=torch.float64, device=self.world.device)  # sum and number of the losses
        for words, following, _ in self.segments(text, mask) if text.shape[1] else ():
            losses, ends = model(words, states, following)
            states = self.carry(ends)
            sums[0] += losses.detach().sum(dtype=torch.float64)
            sums[1] += (following >= 0).sum()
        self.world.allreduce(sums)
        total, number = self.world.on_host(sums).tolist()
        return total / number if number else math.nan

    def state_dict(self) -> dict[str, Any]:
        return {"states": self.states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states, device = state["states"], self.train.device  # checkpoints are loaded on the CPU
        self.states = states and [(h.to(device), c.to(device)) for h, c in states]


def columns_of(states: States, part: slice = WHOLE) -> States:
    """The states of some columns."""
    return states if part == WHOLE else [(h[..., part, :], c[..., part, :]) for h, c in states]


def joined(parts: Sequence[States]) -> States:
    """The states of all columns, from those of consecutive parts of them."""
    return [(torch.cat([h for h, _ in layer], -2), torch.cat([c for _, c in layer], -2)) for layer in zip(*parts, strict=True)]


def columns(text: Tensor, count: int) -> Tensor:
    """A text (words) as (rows, count): each column is a contiguous part of it. The remainder is dropped."""
    rows = len(text) // count
    if rows < 2:
        raise InputError(
            f"{len(text)} words are too few for {count} columns: use a smaller batch_size (for validation and test "
            "dataset.test_batch_size) or fewer processes"
        )
    return text[: rows * count].view(count, rows).t().contiguous()


def segments(text: Tensor, length: int, start: int) -> Generator[Batch]:
    """Consecutive segments of at most `length` rows, starting with segment `start`, each with the rows shifted by one."""
    last = len(text) - 1
    for first in range(start * length, last, length):
        end = min(first + length, last)
        yield text[first:end], text[first + 1 : end + 1], first == 0


def masked_words(count: int, share: float, *seed: int) -> Tensor:
    """Which of `count` words are masked: a pure function of the seed and a word's position, whatever the columns."""
    return torch.from_numpy(numpy.random.default_rng((MASKS, *seed)).random(count) < share)


def masked_segments(text: Tensor, mask: Tensor, masking: Masking, length: int, start: int) -> Generator[Batch]:
    """The same segments as those of `segments`, with the mask in place of the masked words, which are to be restored."""
    last = len(text) - 1
    for first in range(start * length, last, length):
        words, masked = text[first : min(first + length, last)], mask[first : min(first + length, last)]
        yield words.masked_fill(masked, masking.word), words.masked_fill(~masked, NOTHING), first == 0


def perplexity(mean_loss: float) -> float:
    return math.exp(mean_loss) if mean_loss < 700 else math.inf
