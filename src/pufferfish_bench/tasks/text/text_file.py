"""A text of the user's own: one file, split by shares, or three."""

from collections.abc import Sequence
from pathlib import Path

import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import splits
from pufferfish_bench.tasks.text import words
from pufferfish_bench.tasks.text.task import LanguageModelling, StateCarry


def text_file(
    *,
    root: str,
    file: str | Sequence[str],
    shares: Sequence[float],
    vocabulary: Count,
    train_words: Count | None,
    batch_size: Count,
    test_batch_size: Count,
    segment: Count,
    carry: StateCarry,
    world: World,
) -> LanguageModelling:
    """Model the words of a text, trained on the first `train_words` of its training part, or on all if that is null."""
    parts = [words.words_of(lines) for lines in splits.read_parts(Path(root), "file", file, shares)]
    train, val, test = (torch.tensor(part) for part in words.numbered(parts, vocabulary, f"dataset.file={file}"))
    return LanguageModelling(
        train=first_words(train, train_words), val=val, test=test, batch_size=batch_size, test_batch_size=test_batch_size,
        segment=segment, carry=carry, world=world,
    )  # fmt: skip


def first_words(train: torch.Tensor, count: int | None) -> torch.Tensor:
    """The first `count` words of a text, or all if that is None."""
    if count is not None and not 1 <= count <= len(train):
        raise InputError(f"dataset.train_words={count} must be between 1 and {len(train)}, or null for all")
    return train[:count]
