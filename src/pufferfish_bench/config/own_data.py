"""Sizes that a config takes from the user's own data: the model needs them before the data are read. Imports no torch.

In conf/dataset: `classes: ${count_classes:}`. The functions read the files that the other settings of `dataset` name.
"""

from pathlib import Path

from omegaconf import DictConfig

from pufferfish_bench.config.settings import plain


def count_classes(*, _root_: DictConfig) -> int:
    """The classes of a folder of pictures."""
    from pufferfish_bench.tasks.images import class_folders

    dataset = _root_.dataset
    return class_folders.count_classes(Path(dataset.source.root) / dataset.folder)


def count_words(*, _root_: DictConfig) -> int:
    """The different words of a text."""
    from pufferfish_bench.tasks.text import words

    dataset = _root_.dataset
    return words.count_words(Path(dataset.source.root), plain(dataset.file), plain(dataset.shares))


def count_parallel_words(*, _root_: DictConfig) -> int:
    """The words of both languages of a parallel text, and the special ones."""
    from pufferfish_bench.tasks.translation import sentences

    dataset = _root_.dataset
    text = sentences.ParallelText.of(
        root=dataset.source.root, source_file=plain(dataset.source_file), target_file=plain(dataset.target_file),
        shares=plain(dataset.shares), languages=plain(dataset.languages), tokens=dataset.tokens,
    )  # fmt: skip
    return len(sentences.vocabulary_of(text, longest=dataset.longest, min_count=dataset.min_count))


COUNTERS = (count_classes, count_words, count_parallel_words)
