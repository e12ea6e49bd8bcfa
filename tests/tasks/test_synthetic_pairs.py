"""Synthetic sentence pairs: numbers in German and English words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.translation.corpus import SPECIAL, UNKNOWN, Pairs, decode
from pufferfish_bench.tasks.translation.synthetic_pairs import english, german, make_corpus
from tests.support.corpora import same, same_pairs

BY_HAND = {
    0: ("null", "zero"),
    1: ("eins", "one"),
    11: ("elf", "eleven"),
    12: ("zwölf", "twelve"),
    16: ("sechzehn", "sixteen"),
    17: ("siebzehn", "seventeen"),
    20: ("zwanzig", "twenty"),
    21: ("ein und zwanzig", "twenty one"),
    30: ("dreißig", "thirty"),
    66: ("sechs und sechzig", "sixty six"),
    77: ("sieben und siebzig", "seventy seven"),
    100: ("ein hundert", "one hundred"),
    101: ("ein hundert eins", "one hundred one"),
    111: ("ein hundert elf", "one hundred eleven"),
    347: ("drei hundert sieben und vierzig", "three hundred forty seven"),
    1_000: ("ein tausend", "one thousand"),
    1_001: ("ein tausend eins", "one thousand one"),
    12_305: ("zwölf tausend drei hundert fünf", "twelve thousand three hundred five"),
    21_000: ("ein und zwanzig tausend", "twenty one thousand"),
    100_000: ("ein hundert tausend", "one hundred thousand"),
    101_101: ("ein hundert ein tausend ein hundert eins", "one hundred one thousand one hundred one"),
    999_999: (
        "neun hundert neun und neunzig tausend neun hundert neun und neunzig",
        "nine hundred ninety nine thousand nine hundred ninety nine",
    ),
}
VALUES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip


def parsed(words: list[str]) -> int:
    """The number that English words stand for, parsed from left to right: add, and multiply by hundred and thousand."""
    total = so_far = 0
    for word in words:
        if word == "hundred":
            so_far *= 100
        elif word == "thousand":
            total, so_far = so_far * 1000, 0
        else:
            so_far += VALUES[word]
    return total + so_far


NUMBERS = st.integers(0, 999_999)


@pytest.mark.parametrize("number", BY_HAND)
def test_numbers_have_the_words_people_use(number: int):
    assert (" ".join(german(number)), " ".join(english(number))) == BY_HAND[number]


@pytest.mark.parametrize("language", [german, english])
def test_no_two_small_numbers_have_the_same_words(language: object):
    assert len({tuple(language(number)) for number in range(2_001)}) == 2_001


@given(one=NUMBERS, other=NUMBERS)
def test_no_two_numbers_have_the_same_words(one: int, other: int):
    assert (german(one) == german(other)) == (one == other)
    assert (english(one) == english(other)) == (one == other)


@given(NUMBERS)
def test_english_words_can_be_parsed(number: int):
    assert parsed(english(number)) == number


@given(NUMBERS)
def test_german_has_eins_at_the_end_and_ein_elsewhere(number: int):
    pieces = german(number)
    assert (pieces[-1] == "eins") == (number % 100 == 1)
    assert "eins" not in pieces[:-1]
    assert pieces[-1] != "ein"


def digits(part: Pairs) -> list[int]:
    """How many digits each number of a part has."""
    return [len(str(parsed(reference.split()))) for reference in part.references]


def test_no_number_is_evaluated_twice_or_occurs_in_training():
    corpus = make_corpus(train=3_000, test=500)
    parts = (corpus.train, corpus.val, corpus.test)
    assert [len(part) for part in parts] == [3_000, 500, 500]
    learnt = set(corpus.train.references)
    tested = [*corpus.val.references, *corpus.test.references]
    assert len(set(tested)) == 1_000
    assert not learnt & set(tested)


def test_training_numbers_have_all_lengths_equally_often_and_repeat_only_after_all_of_a_length():
    corpus = make_corpus(train=6_000, test=200)
    counts = torch.tensor(digits(corpus.train)).bincount(minlength=7)[1:]
    assert counts.sum() == 6_000
    # each is binomial (6,000 draws of 1/6): within 4 standard deviations, 29 each
    assert (counts - 1_000).abs().max() < 116
    numbers = [parsed(reference.split()) for reference in corpus.train.references]
    assert {number for number in numbers if number < 10} == set(range(10))
    for length in range(1, 7):
        of_length = [number for number in numbers if len(str(number)) == length]
        different = len(set(of_length))
        assert of_length == (of_length[:different] * (len(of_length) // different + 1))[: len(of_length)]


def test_evaluated_numbers_have_all_lengths_equally_often_as_far_as_enough_are_held_out():
    corpus = make_corpus(train=10, test=200)
    counts = torch.tensor(digits(corpus.test) + digits(corpus.val)).bincount(minlength=7)[1:]
    assert counts[:3].tolist() == [0, 4, 45]  # all numbers held out; the longer ones share the rest equally
    assert (counts[3:] - 117).abs().max() < 36  # 4 standard deviations of 9


def test_the_vocabulary_holds_every_word_and_nothing_is_unknown():
    corpus = make_corpus(train=3_000, test=500)
    pieces = [sorted({piece for number in range(2_001) for piece in language(number)}) for language in (english, german)]
    assert corpus.vocabulary == [*SPECIAL, *pieces[0], *pieces[1]]
    assert len(corpus.vocabulary) == len(set(corpus.vocabulary)) == 66
    for part in (corpus.train, corpus.val, corpus.test):
        assert not any((line == UNKNOWN).any() for line in part.source + part.target)
        for source, target, reference in zip(part.source, part.target, part.references, strict=True):
            assert decode(target, corpus.vocabulary) == reference
            assert decode(source, corpus.vocabulary) == " ".join(german(parsed(reference.split())))


def test_the_corpus_is_always_the_same_and_its_evaluated_numbers_do_not_depend_on_the_training_size():
    torch.manual_seed(1)
    first = make_corpus(train=50, test=20)
    torch.manual_seed(2)
    assert same(first, make_corpus(train=50, test=20))
    longer = make_corpus(train=80, test=20)
    assert same_pairs(first.val, longer.val)
    assert same_pairs(first.test, longer.test)
    assert first.train.references == longer.train.references[:50]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"train": 0, "test": 5}, "train_pairs=0 must be between 1 and 1,000,000"),
        ({"train": 1_000_001, "test": 5}, "train_pairs=1000001 must be between 1 and 1,000,000"),
        ({"train": 5, "test": 0}, "test_pairs=0 must be between 1 and 24,999"),
        ({"train": 5, "test": 25_000}, "test_pairs=25000 must be between 1 and 24,999"),
    ],
)
def test_zero_or_too_many_pairs_are_refused(counts: dict[str, int], sentence: str):
    with pytest.raises(InputError, match=sentence):
        make_corpus(**counts)
