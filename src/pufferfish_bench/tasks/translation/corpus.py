"""Sentence pairs as sequences of word numbers, and the vocabulary that encodes and decodes them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pufferfish_bench.tasks.translation.sentences import SPECIAL, WordPair

__all__ = ["SPECIAL", "WordPair"]  # re-exported

UNKNOWN, PAD, START, END = 0, 1, 2, 3  # the numbers of SPECIAL


@dataclass(frozen=True)
class Pairs:
    """Encoded sentences and their translations."""

    source: list[Tensor]  # int64, between START and END
    target: list[Tensor]  # likewise
    references: list[str]  # the translations as they were written, for BLEU

    def __len__(self) -> int:
        return len(self.references)


@dataclass(frozen=True)
class Corpus:
    """Training, validation and test pairs, and the joint vocabulary of both languages."""

    vocabulary: list[str]  # number -> word; starts with SPECIAL
    train: Pairs
    val: Pairs
    test: Pairs
    languages: tuple[str, str]  # source, target


def encode(words: Iterable[str], table: Mapping[str, int]) -> Tensor:
    """The numbers of the words, between START and END. A word that is not in the table becomes UNKNOWN."""
    return torch.tensor([START, *(table.get(word, UNKNOWN) for word in words), END])


def decode(numbers: Iterable[int] | Tensor, vocabulary: Sequence[str]) -> str:
    """The words up to the first END, without START and PAD, separated by spaces."""
    words = []
    for number in map(int, numbers):
        if number == END:
            break
        if number not in (START, PAD):
            words.append(vocabulary[number])
    return " ".join(words)


def encode_pairs(pairs: Iterable[WordPair], vocabulary: Sequence[str]) -> Pairs:
    table = {word: number for number, word in enumerate(vocabulary)}
    encoded = Pairs(source=[], target=[], references=[])
    for source, target, reference in pairs:
        encoded.source.append(encode(source, table))
        encoded.target.append(encode(target, table))
        encoded.references.append(reference)
    return encoded
