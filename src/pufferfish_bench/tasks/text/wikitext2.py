"""WikiText-2 at word level, from wikitext-2/{train,valid,test}.txt."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.text.task import LanguageModelling, StateCarry

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
PARTS = ("train", "valid", "test")


def wikitext2(
    *,
    root: str,
    folder: str,
    vocabulary: Count,
    train_words: Count | None,
    batch_size: Count,
    test_batch_size: Count,
    segment: Count,
    carry: StateCarry,
    world: World,
) -> LanguageModelling:
    """Model WikiText-2, trained on the first `train_words` words, or on all of them if that is null.

    If the text has more different words than `vocabulary`, the rarest become <unk>.
    """
    train, val, test = texts(Path(root) / folder, vocabulary)
    if train_words is not None:
        if not 1 <= train_words <= len(train):
            raise InputError(f"dataset.train_words={train_words} must be between 1 and {len(train)}, or null for all")
        train = train[:train_words]
    return LanguageModelling(
        train=train, val=val, test=test, batch_size=batch_size, test_batch_size=test_batch_size, segment=segment, carry=carry,
        world=world,
    )  # fmt: skip


def texts(folder: Path, vocabulary: int) -> list[Tensor]:
    """The three parts as word numbers, in order of first appearance. Each line ends with END_OF_LINE."""
    parts = []
    for part in PARTS:
        path = folder / f"{part}.txt"
        if not path.is_file():
            raise InputError(
                f"WikiText-2 is not in {folder.resolve()}: {path.name} is missing. Set its location with data_root=DIR "
                "or PUFFERFISH_DATA, or use synthetic data: dataset=synthetic_text"
            )
        parts.append([word for line in text_files.read_lines(path) for word in (*line.split(), END_OF_LINE)])
    words = dict.fromkeys(word for part in parts for word in part)
    if len(words) < vocabulary:
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but {folder} has {len(words):,} different words; use at most that number"
        )
    if len(words) > vocabulary:
        kept = most_frequent(parts[0], vocabulary)
        parts = [[word if word in kept else UNKNOWN for word in part] for part in parts]
        words = dict.fromkeys(word for part in parts for word in part)
    numbers = {word: number for number, word in enumerate(words)}
    return [torch.tensor([numbers[word] for word in part]) for part in parts]


def most_frequent(train: list[str], count: int) -> set[str]:
    """UNKNOWN and the `count` - 1 other words that are most frequent in the training text; among equals, the first ones."""
    others = [word for word, _ in Counter(train).most_common() if word != UNKNOWN]
    if len(others) < count - 1:
        raise InputError(f"dataset.vocabulary={count}: the training text has only {len(others) + 1:,} different words")
    return {UNKNOWN, *others[: count - 1]}
