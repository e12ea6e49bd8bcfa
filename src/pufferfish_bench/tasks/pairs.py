"""Pairs of sentences as numbers; knows nothing of batches, of training or of where the sentences come from."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

UNKNOWN, PAD, START, END = 0, 1, 2, 3
SPECIAL = ("<unk>", "<blank>", "<s>", "</s>")  # the words of these numbers

# Where English words that spaCy has parted are written without a blank; of Multi30k's sentences 99.8 % come back as they were
JOINTS = (
    (r"\s+", " "),
    (r" (n't|'(?:s|m|d|re|ve|ll))(?!\w)", r"\1"),  # isn't, the dog's
    (r"(?<=\w) - (?=\w)", "-"),  # t-shirt
    (r'" ([^"]+) "', r'"\1"'),
    (r"' ([^']+) '", r"'\1'"),
    (r" ([.,:;!?)'%])(?!\w)", r"\1"),
    (r"([(#$]) ", r"\1"),
)

Words = Sequence[str]
Triple = tuple[Words, Words, str]  # source, target, reference


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations."""

    source: list[Tensor]  # each int64, framed by START and END
    target: list[Tensor]  # likewise
    references: list[str]  # the translations as they were written, for BLEU

    def __len__(self) -> int:
        return len(self.references)


@dataclass(frozen=True)
class Corpus:
    """Pairs to learn from, to choose by and to be judged by, and the one vocabulary of both languages."""

    vocabulary: list[str]  # number -> word, beginning with SPECIAL
    train: Pairs
    val: Pairs
    test: Pairs
    languages: tuple[str, str]  # from, to


def numbered(words: Iterable[str], table: Mapping[str, int]) -> Tensor:
    """A sentence as numbers, framed; a word that is not in the table is UNKNOWN."""
    return torch.tensor([START, *(table.get(word, UNKNOWN) for word in words), END])


def spoken(numbers: Iterable[int] | Tensor, vocabulary: Sequence[str]) -> str:
    """The words up to the first END, joined by blanks, without START and PAD."""
    words = []
    for number in map(int, numbers):
        if number == END:
            break
        if number not in (START, PAD):
            words.append(vocabulary[number])
    return " ".join(words)


def detokenised(text: str) -> str:
    """Words that are joined by blanks, as people write them."""
    for joint, joined in JOINTS:
        text = re.sub(joint, joined, text)
    return text


def paired(triples: Iterable[Triple], vocabulary: Sequence[str]) -> Pairs:
    """Sentences in words as pairs in numbers."""
    table = {word: number for number, word in enumerate(vocabulary)}
    pairs = Pairs(source=[], target=[], references=[])
    for source, target, reference in triples:
        pairs.source.append(numbered(source, table))
        pairs.target.append(numbered(target, table))
        pairs.references.append(reference)
    return pairs


def tokenise(language: str, lines: Iterable[str]) -> list[list[str]]:
    """The words of each line, lower-cased, as spaCy's rules for the language part them.

    Single blanks part words and are gone; of a wider gap, or one that is no plain blank, spaCy makes a word, and so it stays:
    the vocabulary of Multi30k that everybody has counts two of them.
    """
    rules = tokenizer(language)
    # lower-cased afterwards: the rules look at capitals
    return [[token.text.lower() for token in rules(line)] for line in lines]


@cache
def tokenizer(language: str) -> Callable:
    """spaCy's rules for a language, set up once."""
    import spacy  # slow to import, and not needed by those who have the words already

    return spacy.blank(language).tokenizer
