"""Numbers in German and in English words, by rule: pairs to translate that need no files."""

import numpy

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks.pairs import SPECIAL, Corpus, Pairs, paired

LIMIT = 1_000_000  # numbers are below
SEED = 0  # the corpus is the same in all runs

GERMAN_SMALL = (
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf", "dreizehn",
    "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
GERMAN_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
GERMAN = (*GERMAN_SMALL, "eins", *GERMAN_TENS, "und", "hundert", "tausend")

ENGLISH_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
ENGLISH_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ENGLISH = (*ENGLISH_SMALL, *ENGLISH_TENS, "hundred", "thousand")


def corpus(*, train: int, test: int) -> Corpus:
    """So many different numbers to learn from, and twice `test` others: to choose by, and to be judged by.

    The latter two do not depend on `train`.
    """
    for name, count in (("train_pairs", train), ("test_pairs", test)):
        if count < 1:
            raise InputError(f"dataset.{name}={count} must be at least 1")
    if train + 2 * test > LIMIT:
        raise InputError(f"dataset.train_pairs={train} and twice dataset.test_pairs={test} are more than the {LIMIT:,} numbers")
    vocabulary = [*SPECIAL, *sorted(ENGLISH), *sorted(GERMAN)]
    drawn = numpy.random.default_rng(SEED).permutation(LIMIT).tolist()
    return Corpus(
        vocabulary=vocabulary,
        test=pairs_of(drawn[:test], vocabulary),
        val=pairs_of(drawn[test : 2 * test], vocabulary),
        train=pairs_of(drawn[2 * test : 2 * test + train], vocabulary),
        languages=("de", "en"),
    )


def pairs_of(numbers: list[int], vocabulary: list[str]) -> Pairs:
    """Each number in both languages."""
    triples = ((german(number), english(number), " ".join(english(number))) for number in numbers)
    return paired(triples, vocabulary)


def german(number: int) -> list[str]:
    """The pieces of the German word for 0..999,999, in their order."""
    thousands, rest = divmod(number, 1000)
    pieces = [*german_hundreds(thousands), "tausend"] if thousands else []
    pieces += german_hundreds(rest) if rest or not thousands else []
    return [*pieces[:-1], "eins"] if pieces[-1] == "ein" else pieces  # "ein" only where something follows


def german_hundreds(number: int) -> list[str]:
    """The same for 0..999 as the beginning of a longer word."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    pieces = [GERMAN_SMALL[hundreds], "hundert"] if hundreds else []
    if rest >= 20:
        return pieces + ([GERMAN_SMALL[ones], "und"] if ones else []) + [GERMAN_TENS[tens - 2]]  # the ones come first
    return pieces + ([GERMAN_SMALL[rest]] if rest or not hundreds else [])


def english(number: int) -> list[str]:
    """The English words for 0..999,999, in their order."""
    thousands, rest = divmod(number, 1000)
    words = [*english_hundreds(thousands), "thousand"] if thousands else []
    return words + (english_hundreds(rest) if rest or not thousands else [])


def english_hundreds(number: int) -> list[str]:
    """The same for 0..999."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    words = [ENGLISH_SMALL[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        return [*words, ENGLISH_TENS[tens - 2], *([ENGLISH_SMALL[ones]] if ones else [])]
    return words + ([ENGLISH_SMALL[rest]] if rest or not hundreds else [])
