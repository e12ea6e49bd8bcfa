"""The translation tasks: Multi30k, and number words that the package makes itself."""

import os
from pathlib import Path
from typing import Any

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count
from pufferfish_bench.tasks import multi30k as files
from pufferfish_bench.tasks import number_words as embedded
from pufferfish_bench.tasks.translation import Translation


def multi30k(*, root: str, folder: str, vocabulary: Count, longest: Count, **settings: Any) -> Translation:
    """Translate Multi30k's sentences; their words are kept in the user's cache, for the next time."""
    corpus = files.corpus(Path(root) / folder, vocabulary=vocabulary, longest=longest, cache=cache_directory())
    return Translation(corpus=corpus, longest=longest, **settings)


def cache_directory() -> Path:
    """Where the system wants programs to keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pufferfish-bench"


def number_words(*, train_pairs: Count, test_pairs: Count, vocabulary: Count, longest: Count, **settings: Any) -> Translation:
    """Translate number words."""
    corpus = embedded.corpus(train=train_pairs, test=test_pairs)
    if vocabulary != len(corpus.vocabulary):
        raise InputError(f"dataset.vocabulary={vocabulary}, but there are {len(corpus.vocabulary)} different words")
    return Translation(corpus=corpus, longest=longest, **settings)
