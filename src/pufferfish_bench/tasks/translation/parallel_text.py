"""Sentence pairs of the user's own, from two files with a pair per line, or from three such pairs of files."""

from collections.abc import Sequence
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.tasks.translation import sentences
from pufferfish_bench.tasks.translation.corpus import SPECIAL, Corpus, encode_pairs
from pufferfish_bench.tasks.translation.task import Translation


def parallel_text(
    *,
    root: str,
    source_file: str | Sequence[str],
    target_file: str | Sequence[str],
    shares: Sequence[float],
    languages: Sequence[str],
    tokens: sentences.Tokens,
    min_count: Count,
    vocabulary: Count,
    longest: Count,
    **settings: Any,
) -> Translation:
    """Translate sentences. spaCy's words are cached in the user's cache directory."""
    text = sentences.ParallelText.of(
        root=root, source_file=source_file, target_file=target_file, shares=shares, languages=languages, tokens=tokens
    )
    train, val, test = text.pairs()
    train = sentences.not_longer(train, longest)
    words = sentences.joint_vocabulary(train, min_count)
    if not len(SPECIAL) < vocabulary <= len(words):
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but the training sentences have {len(words):,} words that occur at least "
            f"{min_count} times, {len(SPECIAL)} special ones included; use a number from {len(SPECIAL) + 1} to {len(words)}"
        )
    words = sentences.without_rarest(words, train, vocabulary)
    parts = (encode_pairs(pairs, words) for pairs in (train, val, test))
    corpus = Corpus(words, *parts, languages=text.languages)
    return Translation(corpus=corpus, longest=longest, **settings)
