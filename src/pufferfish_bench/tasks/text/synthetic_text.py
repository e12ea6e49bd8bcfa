"""Synthetic text: sentences of a small probabilistic grammar whose entropy rate is known.

The grammar is an automaton: in each state it emits a word, and the state and the word determine the next state. The text so
far determines the state, so the entropy of the next word is that of the state's distribution, and no model can do better.
"""

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks.text.task import LanguageModelling, StateCarry, perplexity

TEST_SEED = 1 << 40  # different from the training text's, and the same in all runs

DETERMINERS = ("the", "a", "this", "every", "some")
ADJECTIVES = ("old", "small", "green", "quick", "strange", "quiet", "bright", "hungry", "cold", "tired")
NOUNS = (
    "fish", "dog", "king", "tree", "house", "river", "child", "ship", "bird", "stone", "cloud", "horse", "lamp", "road", "cook",
)  # fmt: skip
VERBS = ("sees", "likes", "finds", "follows", "paints", "hears", "carries", "leaves", "wants", "knows")
PREPOSITIONS = ("near", "behind", "under", "beside")
END = ("<eos>",)

# state -> what may follow: (words, probability, next state); Zipf's law distributes the probability among the words
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
    """Probabilities proportional to 1, 1/2, 1/3, ..."""
    total = sum(1 / rank for rank in range(1, count + 1))
    return [1 / rank / total for rank in range(1, count + 1)]


def distributions() -> tuple[numpy.ndarray, numpy.ndarray]:
    """For each state, the probability of every word and the state that follows it."""
    probability = numpy.zeros((len(GRAMMAR), len(WORDS)))
    following = numpy.zeros((len(GRAMMAR), len(WORDS)), dtype=int)
    for state, choices in GRAMMAR.items():
        for words, share, next_state in choices:
            for word, part in zip(words, zipf(len(words)), strict=True):
                probability[state, WORDS.index(word)] = share * part
                following[state, WORDS.index(word)] = next_state
    return probability, following


def entropy_rate() -> float:
    """Nats per word: the entropy of each state, weighted by its stationary probability."""
    probability, following = distributions()
    transitions = numpy.zeros((len(GRAMMAR),) * 2)
    for state in GRAMMAR:
        numpy.add.at(transitions[state], following[state], probability[state])
    stationary = numpy.full(len(GRAMMAR), 1 / len(GRAMMAR))
    for _ in range(10_000):  # converges, as the automaton is aperiodic
        stationary = stationary @ transitions
    return float(sum(stationary[state] * entropy(probability[state]) for state in GRAMMAR))


def entropy(shares: Sequence[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def sample_text(count: int, *, seed: int) -> Tensor:
    """`count` words as numbers: a pure function of both arguments."""
    probability, following = distributions()
    limits = probability.cumsum(1)
    limits[:, -1] = 1.0  # despite rounding
    state, words = SUBJECT, []
    for drawn in numpy.random.default_rng(seed).random(count):
        word = int(numpy.searchsorted(limits[state], drawn, side="right"))
        words.append(word)
        state = following[state, word]
    return torch.tensor(words)


def synthetic_text(
    *, train_words: Count, test_words: Count, vocabulary: Count, batch_size: Count, test_batch_size: Count, segment: Count,
    carry: StateCarry, world: World,
) -> LanguageModelling:  # fmt: skip
    """Model the text of the grammar. The lowest possible perplexity is known; it is the note of the task."""
    if vocabulary != len(WORDS):
        raise InputError(f"dataset.vocabulary={vocabulary}, but the grammar has {len(WORDS)} words; use that number")
    task = LanguageModelling(
        train=sample_text(train_words, seed=0), val=sample_text(test_words, seed=TEST_SEED),
        test=sample_text(test_words, seed=TEST_SEED + 1), batch_size=batch_size, test_batch_size=test_batch_size,
        segment=segment, carry=carry, world=world,
    )  # fmt: skip
    task.note = f"the lowest possible perplexity on this text is {perplexity(entropy_rate()):.2f}, apart from sampling noise"
    return task
