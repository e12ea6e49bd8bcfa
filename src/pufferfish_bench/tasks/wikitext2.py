"""WikiText-2 from wikitext-2/{train,valid,test}.txt, word by word."""

from pathlib import Path

import torch
from torch import Tensor

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.language import Carry, NextWord
from pufferfish_bench.world import World

END = "<eos>"  # of a line
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
    carry: Carry,
    world: World,
) -> NextWord:
    """The task; `train_words` takes the first so many, all if it is null. The vocabulary is that of all three parts."""
    train, val, test = texts(Path(root) / folder, vocabulary)
    if train_words is not None:
        if not 1 <= train_words <= len(train):
            raise InputError(f"dataset.train_words={train_words} is outside 1..{len(train)}")
        train = train[:train_words]
    return NextWord(
        train=train, val=val, test=test, batch_size=batch_size, test_batch_size=test_batch_size, segment=segment, carry=carry,
        world=world,
    )  # fmt: skip


def texts(folder: Path, vocabulary: int) -> list[Tensor]:
    """The three parts as numbers: words are numbered as they first appear, and each line ends with a word of its own."""
    numbers: dict[str, int] = {}
    parts = []
    for part in PARTS:
        path = folder / f"{part}.txt"
        if not path.is_file():
            raise InputError(
                f"WikiText-2 is not in {folder.resolve()}: {path.name} is missing. Give its place with data_root=DIR or "
                "PUFFERFISH_DATA, or use the embedded data: dataset=synthetic_text"
            )
        words = [word for line in text_files.lines(path) for word in (*line.split(), END)]
        parts.append(torch.tensor([numbers.setdefault(word, len(numbers)) for word in words]))
    if len(numbers) != vocabulary:
        raise InputError(f"dataset.vocabulary={vocabulary}, but {folder} has {len(numbers):,} different words")
    return parts
