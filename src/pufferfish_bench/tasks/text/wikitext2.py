"""WikiText-2 at word level, from wikitext-2/{train,valid,test}.txt."""

from pathlib import Path

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.text.task import LanguageModelling, StateCarry
from pufferfish_bench.tasks.text.text_file import first_words
from pufferfish_bench.tasks.text.words import numbered, words_of

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
    return LanguageModelling(
        train=first_words(train, train_words), val=val, test=test, batch_size=batch_size, test_batch_size=test_batch_size,
        segment=segment, carry=carry, world=world,
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
        parts.append(words_of(text_files.read_lines(path)))
    return [torch.tensor(part) for part in numbered(parts, vocabulary, folder)]
