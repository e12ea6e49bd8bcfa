"""Sentence pairs in words, from files, and their joint vocabulary. Needs no torch: a config refers to the number of words."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records import files
from pufferfish_bench.tasks import splits
from pufferfish_bench.tasks.translation.tokenisation import tokenise

SPECIAL = ("<unk>", "<blank>", "<s>", "</s>")  # the first words of every vocabulary

Sentences = dict[str, list[list[str]]]  # name of a text -> its lines, each as a list of words
Tokens = Literal["spacy", "spaces"]

log = logging.getLogger(__name__)


class WordPair(NamedTuple):
    """A sentence and its translation in words, and the translation as it was written, for BLEU."""

    source: Sequence[str]
    target: Sequence[str]
    reference: str


@dataclass(frozen=True)
class ParallelText:
    """Where the user's own sentence pairs are, and how they become words."""

    root: str
    source_file: tuple[str, ...]  # one file, or one for each part
    target_file: tuple[str, ...]
    shares: tuple[float, ...]
    languages: tuple[str, str]
    tokens: str

    @classmethod
    def of(
        cls, *, root: str, source_file: str | Sequence[str], target_file: str | Sequence[str], shares: Sequence[float],
        languages: Sequence[str], tokens: Tokens,
    ) -> "ParallelText":  # fmt: skip
        if len(languages) != 2:
            raise InputError(f"dataset.languages={list(languages)} must be two: those of the source and of the target")
        source, target = ((file,) if isinstance(file, str) else tuple(file) for file in (source_file, target_file))
        return cls(root, source, target, tuple(shares), (languages[0], languages[1]), tokens)

    def pairs(self) -> list[list[WordPair]]:
        """The sentence pairs of the three parts."""
        stamps = tuple((Path(self.root) / file).stat().st_mtime_ns for file in self.names() if (Path(self.root) / file).is_file())
        return read_pairs(self, stamps)

    def names(self) -> tuple[str, ...]:
        return (*self.source_file, *self.target_file)


@lru_cache(maxsize=1)  # the config counts the words, then the task reads the same files
def read_pairs(text: ParallelText, stamps: tuple[int, ...]) -> list[list[WordPair]]:
    """The sentence pairs of the three parts; `stamps` are the times at which the files were written."""
    lines: dict[str, list[str]] = {}
    for setting, file, side in (("source_file", text.source_file, "source"), ("target_file", text.target_file, "target")):
        name = file[0] if len(file) == 1 else file
        for part, own in zip(splits.PARTS, splits.read_parts(Path(text.root), setting, name, text.shares), strict=True):
            lines[f"{part} {side}"] = [line.strip() for line in own]
    for part in splits.PARTS:
        source, target = (len(lines[f"{part} {side}"]) for side in ("source", "target"))
        if source != target:
            raise InputError(
                f"dataset.source_file has {source:,} lines for {part} and dataset.target_file has {target:,}, but each line "
                "needs its translation"
            )
    languages = {name: text.languages[name.endswith("target")] for name in lines}
    if text.tokens == "spaces":
        found = {name: [line.split() for line in own] for name, own in lines.items()}
    else:
        key = cache_key({f"{name} {languages[name]}": "\n".join(own).encode() for name, own in lines.items()})
        found = tokenised(lines, languages, cache_directory() / f"parallel-{key}.json", "dataset.source_file and target_file")
    return [
        [WordPair(*pair) for pair in zip(found[f"{part} source"], found[f"{part} target"], lines[f"{part} target"], strict=True)]
        for part in splits.PARTS
    ]


def vocabulary_of(text: ParallelText, *, longest: int, min_count: int) -> list[str]:
    """SPECIAL, and the words of both languages that occur at least `min_count` times in the training sentences."""
    found = joint_vocabulary(not_longer(text.pairs()[0], longest), min_count)
    if len(found) == len(SPECIAL):
        raise InputError(
            f"no word occurs at least {min_count} times in training sentences of at most {longest} words: use a lower "
            "dataset.min_count or a higher dataset.longest"
        )
    return found


def not_longer(pairs: Sequence[WordPair], longest: int) -> list[WordPair]:
    return [pair for pair in pairs if max(len(pair.source), len(pair.target)) <= longest]


def word_counts(pairs: Sequence[WordPair], *sides: str) -> Counter[str]:
    return Counter(word for pair in pairs for side in sides for word in getattr(pair, side))


def side_words(pairs: Sequence[WordPair], side: str, min_count: int) -> list[str]:
    """The frequent words of one language."""
    return frequent_words(word_counts(pairs, side), min_count)


def frequent_words(counts: Counter[str], min_count: int) -> list[str]:
    """The words that occur at least `min_count` times, sorted by falling frequency and then alphabetically."""
    return sorted((word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word))


def joint_vocabulary(pairs: Sequence[WordPair], min_count: int) -> list[str]:
    """SPECIAL, the frequent target words, then the frequent source words; a word of both languages once."""
    return list(dict.fromkeys([*SPECIAL, *side_words(pairs, "target", min_count), *side_words(pairs, "source", min_count)]))


def without_rarest(words: Sequence[str], pairs: Sequence[WordPair], size: int) -> list[str]:
    """The vocabulary cut to `size` words: the rarest are left out, of equally rare ones the last in the alphabet."""
    counts = word_counts(pairs, "target", "source")
    by_frequency = sorted(words[len(SPECIAL) :], key=lambda word: (-counts[word], word))
    rarest = set(by_frequency[size - len(SPECIAL) :])
    return [word for word in words if word not in rarest]


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pufferfish-bench"


def tokenised(lines: Mapping[str, list[str]], languages: Mapping[str, str], cache: Path | None, what: str) -> Sentences:
    """All lines as words, from the file `cache` if it is there and intact; otherwise tokenised, and written to it."""
    sentences = read_cache(cache) if cache else None
    if sentences is None:
        log.info(f"tokenising {sum(map(len, lines.values())):,} sentences of {what}: this takes a few seconds")
        sentences = {name: tokenise(languages[name], lines[name]) for name in languages}
        if cache:
            write_cache(cache, sentences)
    return sentences


def cache_key(contents: Mapping[str, bytes]) -> str:
    """A hash of named contents and of spaCy's version."""
    digest = hashlib.sha256(f"spacy={version('spacy')}".encode())
    for name, content in contents.items():
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def checksum(sentences: Sentences) -> str:
    return hashlib.sha256(json.dumps(sentences).encode()).hexdigest()


def write_cache(path: Path, sentences: Sentences) -> None:
    """Write the words if possible. A failure is not an error: the next run only takes longer."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, json.dumps({"sha256": checksum(sentences), "sentences": sentences}) + "\n")
    except OSError as failure:  # read-only, full, or another rank was faster
        log.debug(f"the words cannot be cached: {failure}")


def read_cache(path: Path) -> Sentences | None:
    """The cached words, or None if there are none or they are damaged."""
    try:
        content = files.read_json(path)
        return content["sentences"] if content["sha256"] == checksum(content["sentences"]) else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, not JSON, or JSON of another structure
        return None
