"""Multi30k, German to English, from {train,val,test_2016_flickr}.{de,en}, tokenised by spaCy's rules."""

from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.translation import sentences
from pufferfish_bench.tasks.translation.corpus import SPECIAL, Corpus, WordPair, encode_pairs
from pufferfish_bench.tasks.translation.sentences import (
    Sentences,
    cache_directory,
    joint_vocabulary,
    side_words,
    without_rarest,
)
from pufferfish_bench.tasks.translation.task import Translation

SOURCE, TARGET = "de", "en"
PARTS = ("train", "val", "test_2016_flickr")
FILES = [f"{part}.{language}" for part in PARTS for language in (SOURCE, TARGET)]


def multi30k(*, root: str, folder: str, vocabulary: Count, longest: Count, **settings: Any) -> Translation:
    """Translate Multi30k's sentences. The tokenised sentences are cached in the user's cache directory."""
    corpus = read_corpus(Path(root) / folder, vocabulary=vocabulary, longest=longest, cache=cache_directory())
    return Translation(corpus=corpus, longest=longest, **settings)


def read_corpus(folder: Path, *, vocabulary: int, longest: int = 100, min_count: int = 3, cache: Path | None) -> Corpus:
    """The corpus: training pairs of at most `longest` words per sentence, and the words that occur `min_count` times in them.

    `vocabulary` is the size of the vocabulary: if there are more such words, the rarest are left out. If `cache` is a
    directory, the tokenised sentences are cached there.
    """
    contents = read_files(folder)
    lines = {name: [line.strip() for line in text_files.read_lines(folder / name, contents[name])] for name in FILES}
    for part in PARTS:
        source, target = (len(lines[f"{part}.{language}"]) for language in (SOURCE, TARGET))
        if source != target:
            raise InputError(
                f"{folder}: {part}.{SOURCE} has {source:,} lines and {part}.{TARGET} has {target:,}, but each line needs its "
                "translation; get both files again"
            )
    sentences = tokenised(lines, cache and cache / f"multi30k-{cache_key(contents)}.json")
    pairs = {part: word_pairs(sentences, lines, part) for part in PARTS}
    pairs["train"] = [pair for pair in pairs["train"] if max(len(pair.source), len(pair.target)) <= longest]
    english, german = (side_words(pairs["train"], side, min_count) for side in ("target", "source"))
    words = joint_vocabulary(pairs["train"], min_count)
    if not len(SPECIAL) < vocabulary <= len(words):
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but {folder} has {len(words):,} words: {len(SPECIAL)} special ones and those that "
            f"occur at least {min_count} times in training, {len(english):,} English and {len(german):,} German (some in both); "
            f"use a number from {len(SPECIAL) + 1} to {len(words)}"
        )
    words = without_rarest(words, pairs["train"], vocabulary)
    train, val, test = (encode_pairs(pairs[part], words) for part in PARTS)
    return Corpus(vocabulary=words, train=train, val=val, test=test, languages=(SOURCE, TARGET))


def read_files(folder: Path) -> dict[str, bytes]:
    """The content of the six files; InputError if some are missing."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"Multi30k is not in {folder.resolve()}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Set "
            "its location with data_root=DIR or PUFFERFISH_DATA, or use synthetic data: dataset=synthetic_pairs"
        )
    return {name: (folder / name).read_bytes() for name in FILES}


def word_pairs(sentences: Sentences, lines: dict[str, list[str]], part: str) -> list[WordPair]:
    source, target = f"{part}.{SOURCE}", f"{part}.{TARGET}"
    return [WordPair(*pair) for pair in zip(sentences[source], sentences[target], lines[target], strict=True)]


def tokenised(lines: dict[str, list[str]], cache: Path | None) -> Sentences:
    """All lines as words, from the file `cache` if it is there and intact; otherwise tokenised, and written to it."""
    return sentences.tokenised(lines, {name: name.rpartition(".")[2] for name in FILES}, cache, "Multi30k")


def cache_key(contents: dict[str, bytes]) -> str:
    """A hash of the files' contents and of spaCy's version."""
    return sentences.cache_key({name: contents[name] for name in FILES})
