"""Sample inputs of a model, in batches of any size: to compare two forms of it, to time it, to export its graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pufferfish_bench.config.samples import recorded_input, recorded_sample
from pufferfish_bench.records import reader
from pufferfish_bench.tasks.translation.corpus import PAD, SPECIAL

SENTENCE = 20  # words of a sentence in a sample
SEGMENT = 35  # words of a column in a sample, if the settings have no dataset.segment
Batch = tuple[Any, ...]  # the arguments of a model's forward


def randomness() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Inputs:
    """Makes batches for one kind of model."""

    unit: str  # what a batch is counted in

    def batch(self, model: nn.Module, size: int) -> Batch:
        """A batch of random inputs, the same at each call."""
        raise NotImplementedError

    def names(self, batch: Batch) -> list[str]:
        """A name for each tensor of a batch, for a graph."""
        raise NotImplementedError

    def free_sizes(self, batch: Batch) -> Batch:
        """The structure of a batch with {dimension: name} for each tensor: the sizes that a graph leaves free."""
        raise NotImplementedError


@dataclass(frozen=True)
class Images(Inputs):
    """Numbers of one shape, (batch, *shape)."""

    shape: tuple[int, ...]

    @property
    def unit(self) -> str:  # type: ignore[override]
        return f"of {'x'.join(map(str, self.shape))}"

    def batch(self, model: nn.Module, size: int) -> Batch:
        return (torch.randn(size, *self.shape, generator=randomness()),)

    def names(self, batch: Batch) -> list[str]:
        return ["images"]

    def free_sizes(self, batch: Batch) -> Batch:
        return ({0: "batch"},)


@dataclass(frozen=True)
class Columns(Inputs):
    """Words (time, columns) of a language model, and the states of its layers after the same words."""

    length: int
    vocabulary: int

    @property
    def unit(self) -> str:  # type: ignore[override]
        return f"columns of {self.length} words"

    def batch(self, model: nn.Module, size: int) -> Batch:
        words = torch.randint(self.vocabulary, (self.length, size), generator=randomness())
        with torch.no_grad():
            found = model(words)
        return (words, found[1]) if isinstance(found, tuple) and len(found) == 2 and found[1] else (words,)

    def names(self, batch: Batch) -> list[str]:
        return ["words", *(f"{'hc'[number % 2]}_{number // 2}" for number in range(len(pytree.tree_leaves(batch)) - 1))]

    def free_sizes(self, batch: Batch) -> Batch:
        """The time is not free: torch's exporter writes the length of the sample into the graph of an LSTM."""
        return ({1: "batch"}, *pytree.tree_map(lambda state: {0: "batch"}, batch[1:]))


@dataclass(frozen=True)
class SentencePairs(Inputs):
    """Words (sentences, length) of the source and of the target so far. Every second source ends with padding."""

    length: int
    vocabulary: int

    @property
    def unit(self) -> str:  # type: ignore[override]
        return f"sentences of {self.length} words"

    def batch(self, model: nn.Module, size: int) -> Batch:
        random, first = randomness(), min(len(SPECIAL), self.vocabulary - 1)
        source, target = (torch.randint(first, self.vocabulary, (size, self.length), generator=random) for _ in range(2))
        source[1::2, (self.length + 1) // 2 :] = PAD
        return source, target

    def names(self, batch: Batch) -> list[str]:
        return ["source", "target"]

    def free_sizes(self, batch: Batch) -> Batch:
        return ({0: "batch", 1: "source_words"}, {0: "batch", 1: "target_words"})


def inputs_of(directory: Path, record: Mapping[str, Any], shape: Sequence[int] | None = None) -> Inputs:
    """Sample inputs for the model of a record; `shape`, if given, is that of one input without its batch dimension."""
    if shape is not None:
        return Images(tuple(shape))
    settings = record["settings"]
    with reader.asking(directory):
        sample: list[Tensor] = recorded_sample(settings)
        kind = (recorded_input(settings) or {})["kind"]
        if kind == "images":
            return Images(tuple(sample[0].shape[1:]))
        net, dataset = settings["model"]["net"], settings["dataset"]
        vocabulary = net.get("vocabulary") or dataset.get("vocabulary") or 1 + max(int(words.max()) for words in sample)
        if kind == "text":
            return Columns(int(dataset.get("segment") or SEGMENT), int(vocabulary))
        return SentencePairs(min(SENTENCE, int(net.get("positions", SENTENCE))), int(vocabulary))
