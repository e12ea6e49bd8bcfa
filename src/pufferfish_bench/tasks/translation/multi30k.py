"""Multi30k, German to English, from {train,val,test_2016_flickr}.{de,en}, tokenised by spaCy's rules."""

import hashlib
import json
import logging
import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.records import files
from pufferfish_bench.tasks import text_files
from pufferfish_bench.tasks.translation.corpus import SPECIAL, Corpus, WordPair, encode_pairs
from pufferfish_bench.tasks.translation.task import Translation
from pufferfish_bench.tasks.translation.tokenisation import tokenise

SOURCE, TARGET = "de", "en"
PARTS = ("train", "val", "test_2016_flickr")
FILES = [f"{part}.{language}" for part in PARTS for language in (SOURCE, TARGET)]

Sentences = dict[str, list[list[str]]]  # file name -> its lines, each as a list of words

log = logging.getLogger(__name__)


def multi30k(*, root: str, folder: str, vocabulary: Count, longest: Count, **settings: Any) -> Translation:
    """Translate Multi30k's sentences. The tokenised sentences are cached in the user's cache directory."""
    corpus = read_corpus(Path(root) / folder, vocabulary=vocabulary, longest=longest, cache=cache_directory())
    return Translation(corpus=corpus, longest=longest, **settings)


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pufferfish-bench"


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
    in_english = Counter(word for pair in pairs["train"] for word in pair.target)
    in_german = Counter(word for pair in pairs["train"] for word in pair.source)
    english, german = (frequent_words(counts, min_count) for counts in (in_english, in_german))
    words = list(dict.fromkeys([*SPECIAL, *english, *german]))  # a word of both languages once
    if not len(SPECIAL) < vocabulary <= len(words):
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but {folder} has {len(words):,} words: {len(SPECIAL)} special ones and those that "
            f"occur at least {min_count} times in training, {len(english):,} English and {len(german):,} German (some in both); "
            f"use a number from {len(SPECIAL) + 1} to {len(words)}"
        )
    counts = in_english + in_german
    by_frequency = sorted(words[len(SPECIAL) :], key=lambda word: (-counts[word], word))
    rarest = set(by_frequency[vocabulary - len(SPECIAL) :])
    words = [word for word in words if word not in rarest]
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


def frequent_words(counts: Counter[str], min_count: int) -> list[str]:
    """The words that occur at least `min_count` times, sorted by falling frequency and then alphabetically."""
    return sorted((word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word))


def tokenised(lines: dict[str, list[str]], cache: Path | None) -> Sentences:
    """All lines as words, from the file `cache` if it is there and intact; otherwise tokenised, and written to it."""
    sentences = read_cache(cache) if cache else None
    if sentences is None:
        log.info(f"tokenising {sum(map(len, lines.values())):,} sentences of Multi30k: this takes a few seconds")
        sentences = {name: tokenise(name.rpartition(".")[2], lines[name]) for name in FILES}
        if cache:
            write_cache(cache, sentences)
    return sentences


def cache_key(contents: dict[str, bytes]) -> str:
    """A hash of the files' contents and of spaCy's version."""
    digest = hashlib.sha256(f"spacy={version('spacy')}".encode())
    for name in FILES:
        digest.update(f"\n{name} {len(contents[name])}\n".encode())
        digest.update(contents[name])
    return digest.hexdigest()[:16]


def checksum(sentences: Sentences) -> str:
    return hashlib.sha256(json.dumps(sentences).encode()).hexdigest()


def write_cache(path: Path, sentences: Sentences) -> None:
    """Write the words if possible. A failure is not an error: the next run only takes longer."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, json.dumps({"sha256": checksum(sentences), "sentences": sentences}) + "\n")
    except OSError as failure:  # read-only, full, or another rank was faster
        log.debug(f"the words of Multi30k cannot be cached: {failure}")


def read_cache(path: Path) -> Sentences | None:
    """The cached words, or None if there are none or they are damaged."""
    try:
        content = files.read_json(path)
        return content["sentences"] if content["sha256"] == checksum(content["sentences"]) else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, not JSON, or JSON of another structure
        return None
