"""Numbers in German and in English words, by rule: pairs to translate that need no files."""

from collections.abc import Iterable
from itertools import cycle

import numpy

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks.pairs import SPECIAL, Corpus, Pairs, paired

LIMIT = 1_000_000  # numbers are below
SPANS = [(0, 10), *((10**digits, 10 ** (digits + 1)) for digits in range(1, 6))]  # the numbers of one digit, of two, ...
HELD_OUT = 20  # one number in so many of each length is for validation and test
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
    """`train` numbers to learn from, `test` others to validate on and `test` more to test on: short ones as often as long ones.

    Numbers to learn from come again once all of their length have come. Numbers to validate and test on are all different, are
    never trained on and do not depend on `train`. None of them has one digit: all ten are needed to learn their words.
    """
    random = numpy.random.default_rng(SEED)
    lengths = [random.permutation(numpy.arange(first, last)).tolist() for first, last in SPANS]
    held = [numbers[: len(numbers) // HELD_OUT] for numbers in lengths]
    learnt = [numbers[len(numbers) // HELD_OUT :] for numbers in lengths]
    for name, count, most in (("train_pairs", train, LIMIT), ("test_pairs", test, sum(map(len, held)) // 2)):
        if not 1 <= count <= most:
            raise InputError(f"dataset.{name}={count} must be between 1 and {most:,}")
    tested = drawn(held, 2 * test, random)
    vocabulary = [*SPECIAL, *sorted(ENGLISH), *sorted(GERMAN)]
    return Corpus(
        vocabulary=vocabulary,
        test=pairs_of(tested[:test], vocabulary),
        val=pairs_of(tested[test:], vocabulary),
        train=pairs_of(drawn(map(cycle, learnt), train, numpy.random.default_rng(SEED + 1)), vocabulary),
        languages=("de", "en"),
    )


def drawn(lengths: Iterable[Iterable[int]], count: int, random: numpy.random.Generator) -> list[int]:
    """So many numbers: each time draw a length, uniformly from those that have numbers left, and take its next number."""
    left = [iter(numbers) for numbers in lengths]
    found: list[int] = []
    while len(found) < count:
        place = random.integers(len(left))
        number = next(left[place], None)
        if number is None:
            del left[place]
        else:
            found.append(number)
    return found


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
