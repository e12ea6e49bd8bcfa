"""WikiText-2 at word level, from wikitext-2/{train,valid,test}.txt."""

from pathlib import Path

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.text.task import LanguageModelling, StateCarry

END_OF_LINE = "<eos>"
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
    """Model WikiText-2, trained on the first `train_words` words, or on all of them if that is null."""
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
    numbers: dict[str, int] = {}
    parts = []
    for part in PARTS:
        path = folder / f"{part}.txt"
        if not path.is_file():
            raise InputError(
                f"WikiText-2 is not in {folder.resolve()}: {path.name} is missing. Set its location with data_root=DIR "
                "or PUFFERFISH_DATA, or use synthetic data: dataset=synthetic_text"
            )
        words = [word for line in text_files.read_lines(path) for word in (*line.split(), END_OF_LINE)]
        parts.append(torch.tensor([numbers.setdefault(word, len(numbers)) for word in words]))
    if len(numbers) != vocabulary:
        raise InputError(f"dataset.vocabulary={vocabulary}, but {folder} has {len(numbers):,} different words; use that number")
    return parts
