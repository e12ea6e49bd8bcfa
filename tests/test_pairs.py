"""Pairs of sentences: numbers and words, the real Multi30k and what is kept of it, and numbers in German and English words."""

import json
import os
import re
from pathlib import Path

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks import multi30k, number_words
from pufferfish_bench.tasks.number_words import english, german
from pufferfish_bench.tasks.pairs import END, PAD, SPECIAL, START, UNKNOWN, Corpus, Pairs, detokenised, numbered, spoken, tokenise

VOCABULARY = [*SPECIAL, "a", "dog", "runs"]
TABLE = {word: number for number, word in enumerate(VOCABULARY)}

# three training pairs: "a", "dog", "." and "ein", "hund", "." are said three times, "." in both languages
SMALL = {
    "train.de": "Ein Hund.\nEin Hund läuft.\n  Ein Hund sitzt. \n",
    "train.en": "A dog.\nA dog runs.\n  A dog sits. \n",
    "val.de": "Hund\n",
    "val.en": "Dog\n",
    "test_2016_flickr.de": "Ein Hund im Park.\nEin Hund.\n",
    "test_2016_flickr.en": "A dog in a Park.\nA  dog.\n",
}
SMALL_VOCABULARY = [*SPECIAL, ".", "a", "dog", "ein", "hund"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with six small files."""
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name, text in SMALL.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def no_tokeniser(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on whoever wants words must have kept them."""

    def fail(*_: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(multi30k, "tokenise", fail)


def same_pairs(one: Pairs, other: Pairs) -> bool:
    tensors = zip(one.source + one.target, other.source + other.target, strict=True)
    return one.references == other.references and all(torch.equal(*both) for both in tensors)


def same(one: Corpus, other: Corpus) -> bool:
    parts = ((one.train, other.train), (one.val, other.val), (one.test, other.test))
    return one.vocabulary == other.vocabulary and one.languages == other.languages and all(same_pairs(*both) for both in parts)


@given(st.lists(st.sampled_from(VOCABULARY[4:])))
def test_what_is_numbered_is_spoken_again(words: list[str]):
    numbers = numbered(words, TABLE)
    assert numbers.dtype == torch.int64
    assert numbers.shape == (len(words) + 2,)
    assert (numbers[0], numbers[-1]) == (START, END)
    assert spoken(numbers, VOCABULARY) == " ".join(words)


def test_a_word_nobody_knows_is_unknown_and_nothing_is_spoken_after_the_end():
    assert numbered(["a", "cat"], TABLE).tolist() == [START, 4, UNKNOWN, END]
    assert spoken([PAD, START, 4, PAD, UNKNOWN, 5, END, 6, END], VOCABULARY) == "a <unk> dog"
    assert spoken([4, 6], VOCABULARY) == "a runs"
    assert [SPECIAL[number] for number in (UNKNOWN, PAD, START, END)] == ["<unk>", "<blank>", "<s>", "</s>"]


def test_words_are_parted_by_the_rules_of_the_language_and_lower_cased():
    assert tokenise("en", ["A man isn't here.", ""]) == [["a", "man", "is", "n't", "here", "."], []]
    assert tokenise("de", ["Ein Mann, z.B. Ötzi"]) == [["ein", "mann", ",", "z.b.", "ötzi"]]
    assert tokenise("en", ["a  dog"]) == [["a", " ", "dog"]]  # the second of two blanks is a word to spaCy


SENTENCES = (
    "a dog's owner isn't there, and they're sad.",
    "a middle-aged man in a t-shirt (no. 5) plays tug-of-war!",
    "a sign that says \"don't walk\" hangs at the boys' school.",
    "what's 50% of 'this'?",
    "twenty one",
    "",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_parted_sentence_is_put_together_again(sentence: str):
    (words,) = tokenise("en", [sentence])
    assert detokenised(" ".join(words)) == sentence


def test_the_real_references_parted_and_put_together_again_score_one_hundred(data_root: Path):
    for part in ("val", "test_2016_flickr"):
        references = (data_root / "multi30k" / f"{part}.en").read_text(encoding="utf-8").strip("\n").split("\n")
        words = [" ".join(words) for words in tokenise("en", references)]
        score = sacrebleu.BLEU(lowercase=True, force=True).corpus_score
        assert score([detokenised(line) for line in words], [references]).score == pytest.approx(100.0)
        assert score(words, [references]).score < 98  # what is lost without


def test_the_vocabulary_is_english_then_german_by_frequency_then_alphabet_each_word_once(small: Path):
    corpus = multi30k.corpus(small, vocabulary=9, cache=None)
    assert corpus.vocabulary == SMALL_VOCABULARY
    assert corpus.languages == ("de", "en")
    assert [spoken(line, corpus.vocabulary) for line in corpus.train.source] == ["ein hund .", *["ein hund <unk> ."] * 2]
    assert [spoken(line, corpus.vocabulary) for line in corpus.train.target] == ["a dog .", *["a dog <unk> ."] * 2]
    assert corpus.train.references == ["A dog.", "A dog runs.", "A dog sits."]
    assert corpus.test.references == ["A dog in a Park.", "A  dog."]
    more = multi30k.corpus(small, vocabulary=13, least=1, cache=None)
    assert more.vocabulary == [*SPECIAL, ".", "a", "dog", "runs", "sits", "ein", "hund", "läuft", "sitzt"]


def test_only_training_pairs_are_left_out_for_their_length_and_their_words_do_not_count(small: Path):
    corpus = multi30k.corpus(small, vocabulary=9, longest=3, least=1, cache=None)
    assert corpus.vocabulary == SMALL_VOCABULARY
    assert corpus.train.references == ["A dog."]
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [1, 1, 2]
    assert len(corpus.test.source[0]) == 5 + 2
    (small / "train.en").write_text("A big dog.\nA dog.\nA dog.\n")  # too long on one side only
    (small / "train.de").write_text("Ein Hund.\nEin Hund läuft.\nEin Hund.\n")
    assert multi30k.corpus(small, vocabulary=9, longest=3, least=1, cache=None).train.references == ["A dog."]


def test_the_real_multi30k_has_the_pairs_and_words_everybody_has_and_is_parted_into_words_once(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    corpus = multi30k.corpus(data_root / "multi30k", vocabulary=9521, cache=tmp_path)
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [29_000, 1_014, 1_000]
    assert len(corpus.vocabulary) == len(set(corpus.vocabulary)) == 9_521
    assert corpus.vocabulary[: len(SPECIAL) + 3] == [*SPECIAL, "a", ".", "in"]
    assert spoken(corpus.train.target[0], corpus.vocabulary) == "two young , white males are outside near many bushes ."
    assert corpus.train.references[0] == "Two young, White males are outside near many bushes."
    assert spoken(corpus.train.source[0], corpus.vocabulary).startswith("zwei junge weiße männer sind im freien")
    assert [record.message for record in caplog.records if "62,028 sentences" in record.message]

    monkeypatch.setattr(multi30k, "tokenise", lambda *_: pytest.fail("tokenised again"))
    caplog.clear()
    assert same(corpus, multi30k.corpus(data_root / "multi30k", vocabulary=9521, cache=tmp_path))
    assert not caplog.records


def test_what_is_kept_is_one_file_that_is_read_instead_of_tokenising(small: Path, tmp_path: Path, request: pytest.FixtureRequest):
    cache = tmp_path / "new" / "cache"
    first = multi30k.corpus(small, vocabulary=9, cache=cache)
    (file,) = cache.iterdir()
    assert file.suffix == ".json"
    name, digest = file.stem.split("-")
    assert name == "multi30k"
    assert len(digest) == 16
    assert int(digest, 16) >= 0
    request.getfixturevalue("no_tokeniser")
    assert same(first, multi30k.corpus(small, vocabulary=9, cache=cache))
    with pytest.raises(AssertionError, match="tokenised again"):
        multi30k.corpus(small, vocabulary=9, cache=None)


@pytest.mark.parametrize("name", SMALL)
def test_a_changed_file_gets_another_cache(name: str, small: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    multi30k.corpus(small, vocabulary=9, cache=cache)
    (small / name).write_text(SMALL[name].replace("Hund", "Hund Hund").replace("og", "og dog"), encoding="utf-8")
    changed = multi30k.corpus(small, vocabulary=9, cache=cache)
    assert len(list(cache.iterdir())) == 2
    assert same(changed, multi30k.corpus(small, vocabulary=9, cache=None))


def test_another_spacy_gets_another_cache(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    multi30k.corpus(small, vocabulary=9, cache=tmp_path / "cache")
    monkeypatch.setattr(multi30k, "version", lambda _: "0.0")
    multi30k.corpus(small, vocabulary=9, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("settings", [{"longest": 3, "least": 1}, {"longest": 4}, {"least": 2}], ids=str)
def test_other_settings_have_the_same_words(settings: dict, small: Path, tmp_path: Path, request: pytest.FixtureRequest):
    multi30k.corpus(small, vocabulary=9, cache=tmp_path / "cache")
    fresh = multi30k.corpus(small, vocabulary=9, cache=None, **settings)
    request.getfixturevalue("no_tokeniser")
    assert same(fresh, multi30k.corpus(small, vocabulary=9, cache=tmp_path / "cache", **settings))


def cut(content: str) -> str:
    return content[: len(content) // 2]


def another_word(content: str) -> str:
    return content.replace("hund", "mund")


@pytest.mark.parametrize("damage", [cut, another_word, lambda _: "", lambda _: "[]", lambda _: "{}", lambda _: "\0\xff"])
def test_a_damaged_cache_is_ignored_and_rewritten(damage: object, small: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    first = multi30k.corpus(small, vocabulary=9, cache=cache)
    (file,) = cache.iterdir()
    whole = file.read_text()
    assert json.loads(whole)["sentences"]["val.de"] == [["hund"]]
    file.write_text(damage(whole), encoding="latin-1")
    assert same(first, multi30k.corpus(small, vocabulary=9, cache=cache))
    assert file.read_text() == whole
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_no_error(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = multi30k.corpus(small, vocabulary=9, cache=None)
    (tmp_path / "file").write_text("not a directory")
    assert same(first, multi30k.corpus(small, vocabulary=9, cache=tmp_path / "file" / "cache"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert same(first, multi30k.corpus(small, vocabulary=9, cache=tmp_path / "cache"))


@pytest.mark.parametrize("part", ["train", "val", "test_2016_flickr"])
def test_unequal_numbers_of_lines_are_refused_with_both_counts(part: str, small: Path, no_tokeniser: None):
    (small / f"{part}.de").write_text("Hund\n" * 1_234)
    count = SMALL[f"{part}.en"].count("\n")
    with pytest.raises(InputError, match=rf"{part}\.de has 1,234 lines and {part}\.en {count}:"):
        multi30k.corpus(small, vocabulary=9, cache=None)


def test_only_line_feeds_end_a_line(small: Path):
    (small / "val.de").write_text("Ein\u2028Hund\x85 \x0b.", encoding="utf-8")  # what str.splitlines would part
    (small / "train.en").write_bytes(SMALL["train.en"].replace("\n", "\r\n").encode())
    corpus = multi30k.corpus(small, vocabulary=9, cache=None)
    assert [len(part) for part in (corpus.train, corpus.val)] == [3, 1]
    assert corpus.train.references == ["A dog.", "A dog runs.", "A dog sits."]


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_file_is_named_with_the_ways_out(name: str, small: Path):
    (small / name).unlink()
    with pytest.raises(InputError) as error:
        multi30k.corpus(small, vocabulary=9, cache=None)
    for words in (str(small), f"{name} is missing", "data_root=DIR", "PUFFERFISH_DATA", "dataset=synthetic_pairs"):
        assert words in str(error.value)
    assert not any(other in str(error.value) for other in SMALL if other != name)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\x1f\x8b\x08\x00", "line 1, byte 2"),
        ("Ein Hund.\nEin Mädchen läuft.\n".encode("latin-1"), "line 2, byte 6"),
        ("Hund".encode("utf-16-le"), "line 1, byte 2"),  # valid UTF-8, and yet no text
    ],
)
def test_a_file_that_is_no_text_is_named_with_the_place_and_without_its_bytes(small: Path, content: bytes, place: str):
    (small / "val.de").write_bytes(content)
    with pytest.raises(InputError, match=rf"val\.de is not text in UTF-8 \({place} of the line\)") as error:
        multi30k.corpus(small, vocabulary=9, cache=None)
    assert not {"Hund", "dchen", "x1f", "x8b", "xe4"} & set(re.findall(r"\w+", str(error.value)))


@pytest.mark.parametrize("content", ["", "\n\n", " \n\t"])
@pytest.mark.parametrize("part", ["train", "val", "test_2016_flickr"])
def test_files_without_words_are_named(small: Path, part: str, content: str):
    for language in ("de", "en"):
        (small / f"{part}.{language}").write_text(content)
    with pytest.raises(InputError, match=rf"{part}\.de is empty: it has no words"):
        multi30k.corpus(small, vocabulary=9, cache=None)


def test_another_vocabulary_is_refused_with_what_was_found(small: Path):
    with pytest.raises(InputError, match=r"dataset\.vocabulary=9521, but .* gives 9: 4 special.* 3 English and 3 German"):
        multi30k.corpus(small, vocabulary=9521, cache=None)


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


def understood(words: list[str]) -> int:
    """The number that English words say, from left to right: add, and multiply by hundred and thousand."""
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
def test_numbers_are_said_as_people_say_them(number: int):
    assert (" ".join(german(number)), " ".join(english(number))) == BY_HAND[number]


@pytest.mark.parametrize("language", [german, english])
def test_no_two_small_numbers_are_said_alike(language: object):
    assert len({tuple(language(number)) for number in range(2_001)}) == 2_001


@given(one=NUMBERS, other=NUMBERS)
def test_no_two_numbers_are_said_alike(one: int, other: int):
    assert (german(one) == german(other)) == (one == other)
    assert (english(one) == english(other)) == (one == other)


@given(NUMBERS)
def test_english_can_be_understood(number: int):
    assert understood(english(number)) == number


@given(NUMBERS)
def test_german_ends_in_eins_and_begins_with_ein(number: int):
    pieces = german(number)
    assert (pieces[-1] == "eins") == (number % 100 == 1)
    assert "eins" not in pieces[:-1]
    assert pieces[-1] != "ein"


def digits(part: Pairs) -> list[int]:
    """How many digits each number of a part has."""
    return [len(str(understood(reference.split()))) for reference in part.references]


def test_what_is_tested_is_never_trained_on_and_no_number_is_tested_twice():
    corpus = number_words.corpus(train=3_000, test=500)
    parts = (corpus.train, corpus.val, corpus.test)
    assert [len(part) for part in parts] == [3_000, 500, 500]
    learnt = set(corpus.train.references)
    tested = [*corpus.val.references, *corpus.test.references]
    assert len(set(tested)) == 1_000
    assert not learnt & set(tested)


def test_the_numbers_to_learn_have_any_length_equally_often_and_each_length_shows_all_it_has_before_one_comes_again():
    corpus = number_words.corpus(train=6_000, test=200)
    counts = torch.tensor(digits(corpus.train)).bincount(minlength=7)[1:]
    assert counts.sum() == 6_000
    # each is binomial (6,000 draws of 1/6): within 4 standard deviations, 29 each
    assert (counts - 1_000).abs().max() < 116
    numbers = [understood(reference.split()) for reference in corpus.train.references]
    assert {number for number in numbers if number < 10} == set(range(10))
    for length in range(1, 7):
        of_length = [number for number in numbers if len(str(number)) == length]
        different = len(set(of_length))
        assert of_length == (of_length[:different] * (len(of_length) // different + 1))[: len(of_length)]


def test_the_tested_numbers_have_any_length_equally_often_as_far_as_numbers_are_held_out():
    corpus = number_words.corpus(train=10, test=200)
    counts = torch.tensor(digits(corpus.test) + digits(corpus.val)).bincount(minlength=7)[1:]
    assert counts[:3].tolist() == [0, 4, 45]  # all that are held out; the rest is shared equally by the longer ones
    assert (counts[3:] - 117).abs().max() < 36  # 4 standard deviations of 9


def test_the_embedded_vocabulary_is_every_piece_and_nothing_is_unknown():
    corpus = number_words.corpus(train=3_000, test=500)
    pieces = [sorted({piece for number in range(2_001) for piece in language(number)}) for language in (english, german)]
    assert corpus.vocabulary == [*SPECIAL, *pieces[0], *pieces[1]]
    assert len(corpus.vocabulary) == len(set(corpus.vocabulary)) == 66
    for part in (corpus.train, corpus.val, corpus.test):
        assert not any((line == UNKNOWN).any() for line in part.source + part.target)
        for source, target, reference in zip(part.source, part.target, part.references, strict=True):
            assert spoken(target, corpus.vocabulary) == reference
            assert spoken(source, corpus.vocabulary) == " ".join(german(understood(reference.split())))


def test_the_embedded_corpus_is_always_the_same_and_is_judged_by_the_same_numbers_however_much_is_learnt():
    torch.manual_seed(1)
    first = number_words.corpus(train=50, test=20)
    torch.manual_seed(2)
    assert same(first, number_words.corpus(train=50, test=20))
    longer = number_words.corpus(train=80, test=20)
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
def test_more_numbers_than_there_are_or_none_are_refused(counts: dict[str, int], sentence: str):
    with pytest.raises(InputError, match=sentence):
        number_words.corpus(**counts)
