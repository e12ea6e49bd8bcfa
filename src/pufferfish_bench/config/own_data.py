"""What a config takes from the user's own data: sizes that the model needs, and a hash of the contents. Imports no torch.

In conf/dataset: `classes: ${count_classes:}`. The functions read the files that the other settings of `dataset` name.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pufferfish_bench.config.settings import plain
from pufferfish_bench.config.signatures import check_arguments


def count_classes(*, _root_: DictConfig) -> int:
    """The classes of a folder of pictures."""
    from pufferfish_bench.tasks.images import class_folders

    dataset = _root_.dataset
    return class_folders.count_classes(Path(dataset.source.root) / dataset.folder)


def count_words(*, _root_: DictConfig) -> int:
    """The different words of a text."""
    from pufferfish_bench.tasks.text import words

    dataset = _root_.dataset
    settings = checked(dataset, words.count_words, "file", "shares")
    return words.count_words(Path(dataset.source.root), **settings)


def count_parallel_words(*, _root_: DictConfig) -> int:
    """The words of both languages of a parallel text, and the special ones."""
    from pufferfish_bench.tasks.translation import sentences

    dataset = _root_.dataset
    files = checked(dataset, sentences.ParallelText.of, "source_file", "target_file", "shares", "languages", "tokens")
    limits = checked(dataset, sentences.vocabulary_of, "longest", "min_count")
    return len(sentences.vocabulary_of(sentences.ParallelText.of(root=dataset.source.root, **files), **limits))


def checked(dataset: DictConfig, function: Callable[..., Any], *names: str) -> dict[str, Any]:
    """These settings of a data set, which must have the types that the function takes."""
    settings = {name: plain(dataset[name]) for name in names}
    check_arguments("dataset", settings, function, complete=False)
    return settings


def hash_of_pictures(*, _root_: DictConfig) -> str | None:
    """A hash of the names and sizes of the pictures in a folder; None if there is no such folder."""
    from pufferfish_bench.tasks.images import class_folders

    folder = Path(_root_.dataset.source.root) / _root_.dataset.folder
    if not folder.is_dir():
        return None
    known = OmegaConf.get_cache(_root_)[hash_of_pictures.__name__]  # a config is resolved several times, and files may be many
    if folder not in known:
        known[folder] = class_folders.hash_of_pictures(folder)
    return known[folder]


def hash_of_files(*settings: str, _root_: DictConfig) -> str | None:
    """A hash of the contents of the files that these settings of the data set name; None if one of them does not exist."""
    named = [plain(_root_.dataset[setting]) for setting in settings]
    names = [name for files in named for name in (files if isinstance(files, list) else [files])]
    paths = [Path(_root_.dataset.source.root) / str(name) for name in names]
    if not all(path.is_file() for path in paths):
        return None
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:16]


RESOLVERS = (count_classes, count_words, count_parallel_words, hash_of_pictures, hash_of_files)
