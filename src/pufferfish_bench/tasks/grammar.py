"""Text drawn from a small probabilistic grammar whose entropy rate is known; knows nothing of batches or training.

The grammar is an automaton: in each state it says a word, and state and word decide the next state. Who has read the text
so far knows the state, so the entropy of the next word is that of the state's distribution, and no model can do better.
"""

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

DETERMINERS = ("the", "a", "this", "every", "some")
ADJECTIVES = ("old", "small", "green", "quick", "strange", "quiet", "bright", "hungry", "cold", "tired")
NOUNS = (
    "fish",
    "dog",
    "king",
    "tree",
    "house",
    "river",
    "child",
    "ship",
    "bird",
    "stone",
    "cloud",
    "horse",
    "lamp",
    "road",
    "cook",
)
VERBS = ("sees", "likes", "finds", "follows", "paints", "hears", "carries", "leaves", "wants", "knows")
PREPOSITIONS = ("near", "behind", "under", "beside")
END = ("<eos>",)

# state -> what may come: (words, share of the state, next state); the words of a list are said by Zipf's law
SUBJECT, ITS_NOUN, VERB, OBJECT, THAT_NOUN, AFTER = range(6)
GRAMMAR = {
    SUBJECT: [(DETERMINERS, 1.0, ITS_NOUN)],
    ITS_NOUN: [(ADJECTIVES, 0.3, ITS_NOUN), (NOUNS, 0.7, VERB)],
    VERB: [(VERBS, 1.0, OBJECT)],
    OBJECT: [(DETERMINERS, 1.0, THAT_NOUN)],
    THAT_NOUN: [(ADJECTIVES, 0.3, THAT_NOUN), (NOUNS, 0.7, AFTER)],
    AFTER: [(END, 0.6, SUBJECT), (PREPOSITIONS, 0.4, OBJECT)],
}
WORDS = (*DETERMINERS, *ADJECTIVES, *NOUNS, *VERBS, *PREPOSITIONS, *END)


def zipf(count: int) -> list[float]:
    """Shares that fall as 1, 1/2, 1/3, ..."""
    total = sum(1 / rank for rank in range(1, count + 1))
    return [1 / rank / total for rank in range(1, count + 1)]


def distributions() -> tuple[numpy.ndarray, numpy.ndarray]:
    """For each state the probability of every word, and the state that each word leads to."""
    probability = numpy.zeros((len(GRAMMAR), len(WORDS)))
    following = numpy.zeros((len(GRAMMAR), len(WORDS)), dtype=int)
    for state, choices in GRAMMAR.items():
        for words, share, next_state in choices:
            for word, part in zip(words, zipf(len(words)), strict=True):
                probability[state, WORDS.index(word)] = share * part
                following[state, WORDS.index(word)] = next_state
    return probability, following


def entropy_rate() -> float:
    """Nats a word: the entropy of each state, weighted by how often the automaton is in it."""
    probability, following = distributions()
    moves = numpy.zeros((len(GRAMMAR),) * 2)
    for state in GRAMMAR:
        numpy.add.at(moves[state], following[state], probability[state])
    often = numpy.full(len(GRAMMAR), 1 / len(GRAMMAR))
    for _ in range(10_000):  # the automaton is aperiodic: this converges
        often = often @ moves
    return float(sum(often[state] * entropy(probability[state]) for state in GRAMMAR))


def entropy(shares: Sequence[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def text(count: int, *, seed: int) -> Tensor:
    """So many words, as numbers: a pure function of both arguments."""
    probability, following = distributions()
    limits = probability.cumsum(1)
    limits[:, -1] = 1.0  # rounding must not leave a gap
    state, words = SUBJECT, []
    for drawn in numpy.random.default_rng(seed).random(count):
        word = int(numpy.searchsorted(limits[state], drawn, side="right"))
        words.append(word)
        state = following[state, word]
    return torch.tensor(words)
