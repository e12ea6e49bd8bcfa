"""Texts as lists of words, and their vocabulary. Needs no torch: a config refers to the number of words."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks import splits

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"


def words_of(lines: Sequence[str]) -> list[str]:
    """The words of a text, separated by white space. Each line ends with END_OF_LINE."""
    return [word for line in lines for word in (*line.split(), END_OF_LINE)]


def count_words(root: Path, file: str | Sequence[str], shares: Sequence[float]) -> int:
    """The number of different words in all parts of a text, with END_OF_LINE."""
    parts = splits.read_parts(root, "file", file, shares)
    return len({END_OF_LINE, *(word for lines in parts for line in lines for word in line.split())})


def numbered(parts: Sequence[list[str]], vocabulary: int, place: Path | str) -> list[list[int]]:
    """The parts as word numbers, in order of first appearance; of more than `vocabulary` words the rarest become UNKNOWN."""
    words = dict.fromkeys(word for part in parts for word in part)
    if len(words) < vocabulary:
        raise InputError(
            f"dataset.vocabulary={vocabulary}, but {place} has {len(words):,} different words; use at most that number"
        )
    if len(words) > vocabulary:
        kept = most_frequent(parts[0], vocabulary)
        parts = [[word if word in kept else UNKNOWN for word in part] for part in parts]
        words = dict.fromkeys(word for part in parts for word in part)
    numbers = {word: number for number, word in enumerate(words)}
    return [[numbers[word] for word in part] for part in parts]


def most_frequent(train: list[str], count: int) -> set[str]:
    """UNKNOWN and the `count` - 1 other words that are most frequent in the training text; among equals, the first ones."""
    others = [word for word, _ in Counter(train).most_common() if word != UNKNOWN]
    if len(others) < count - 1:
        raise InputError(f"dataset.vocabulary={count}: the training text has only {len(others) + 1:,} different words")
    return {UNKNOWN, *others[: count - 1]}
