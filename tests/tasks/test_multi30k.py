"""Multi30k: the vocabulary, the cache of tokenised sentences, and every way in which the files may be wrong."""

import json
import os
import re
from pathlib import Path

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.translation import sentences
from pufferfish_bench.tasks.translation.corpus import SPECIAL, decode
from pufferfish_bench.tasks.translation.multi30k import read_corpus
from tests.support.corpora import same
from tests.support.multi30k import SMALL

SMALL_VOCABULARY = [*SPECIAL, ".", "a", "dog", "ein", "hund"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with the six files, each of a few lines."""
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name, text in SMALL.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def no_tokeniser(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on tokenising fails: the words must come from the cache."""

    def fail(*_: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(sentences, "tokenise", fail)


def test_the_vocabulary_is_english_then_german_by_frequency_then_alphabet_each_word_once(small: Path):
    corpus = read_corpus(small, vocabulary=9, cache=None)
    assert corpus.vocabulary == SMALL_VOCABULARY
    assert corpus.languages == ("de", "en")
    assert [decode(line, corpus.vocabulary) for line in corpus.train.source] == ["ein hund .", *["ein hund <unk> ."] * 2]
    assert [decode(line, corpus.vocabulary) for line in corpus.train.target] == ["a dog .", *["a dog <unk> ."] * 2]
    assert corpus.train.references == ["A dog.", "A dog runs.", "A dog sits."]
    assert corpus.test.references == ["A dog in a Park.", "A  dog."]
    more = read_corpus(small, vocabulary=13, min_count=1, cache=None)
    assert more.vocabulary == [*SPECIAL, ".", "a", "dog", "runs", "sits", "ein", "hund", "läuft", "sitzt"]


def test_a_smaller_vocabulary_leaves_out_the_words_that_are_rarest_in_both_languages(small: Path):
    assert read_corpus(small, vocabulary=8, cache=None).vocabulary == [*SPECIAL, ".", "a", "dog", "ein"]  # hund: last by alphabet
    corpus = read_corpus(small, vocabulary=5, cache=None)
    assert corpus.vocabulary == [*SPECIAL, "."]  # of both languages, so the most frequent
    assert decode(corpus.train.target[0], corpus.vocabulary) == "<unk> <unk> ."
    for language, line in (("en", "Zebra zebra zebra dog."), ("de", "Ein Hund.")):  # frequent, but last by alphabet
        (small / f"train.{language}").write_text(f"{line}\n" * 3)
    assert read_corpus(small, vocabulary=6, cache=None).vocabulary == [*SPECIAL, "zebra", "."]
    (small / "train.en").write_text("A dog.\n" * 3)
    with pytest.raises(InputError, match="use a number from 5 to 9"):
        read_corpus(small, vocabulary=4, cache=None)


def test_only_long_training_pairs_are_left_out_and_their_words_are_not_counted(small: Path):
    corpus = read_corpus(small, vocabulary=9, longest=3, min_count=1, cache=None)
    assert corpus.vocabulary == SMALL_VOCABULARY
    assert corpus.train.references == ["A dog."]
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [1, 1, 2]
    assert len(corpus.test.source[0]) == 5 + 2
    (small / "train.en").write_text("A big dog.\nA dog.\nA dog.\n")  # too long on one side only
    (small / "train.de").write_text("Ein Hund.\nEin Hund läuft.\nEin Hund.\n")
    assert read_corpus(small, vocabulary=9, longest=3, min_count=1, cache=None).train.references == ["A dog."]


def test_the_real_multi30k_has_the_published_sizes_and_is_tokenised_once(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    corpus = read_corpus(data_root / "multi30k", vocabulary=9521, cache=tmp_path)
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [29_000, 1_014, 1_000]
    assert len(corpus.vocabulary) == len(set(corpus.vocabulary)) == 9_521
    assert corpus.vocabulary[: len(SPECIAL) + 3] == [*SPECIAL, "a", ".", "in"]
    assert decode(corpus.train.target[0], corpus.vocabulary) == "two young , white males are outside near many bushes ."
    assert corpus.train.references[0] == "Two young, White males are outside near many bushes."
    assert decode(corpus.train.source[0], corpus.vocabulary).startswith("zwei junge weiße männer sind im freien")
    assert [record.message for record in caplog.records if "62,028 sentences" in record.message]

    monkeypatch.setattr(sentences, "tokenise", lambda *_: pytest.fail("tokenised again"))
    caplog.clear()
    assert same(corpus, read_corpus(data_root / "multi30k", vocabulary=9521, cache=tmp_path))
    assert not caplog.records


def test_the_cache_is_one_file_that_is_read_instead_of_tokenising(small: Path, tmp_path: Path, request: pytest.FixtureRequest):
    cache = tmp_path / "new" / "cache"
    first = read_corpus(small, vocabulary=9, cache=cache)
    (file,) = cache.iterdir()
    assert file.suffix == ".json"
    name, digest = file.stem.split("-")
    assert name == "multi30k"
    assert len(digest) == 16
    assert int(digest, 16) >= 0
    request.getfixturevalue("no_tokeniser")
    assert same(first, read_corpus(small, vocabulary=9, cache=cache))
    with pytest.raises(AssertionError, match="tokenised again"):
        read_corpus(small, vocabulary=9, cache=None)


@pytest.mark.parametrize("name", SMALL)
def test_a_changed_file_gets_another_cache(name: str, small: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    read_corpus(small, vocabulary=9, cache=cache)
    (small / name).write_text(SMALL[name].replace("Hund", "Hund Hund").replace("og", "og dog"), encoding="utf-8")
    changed = read_corpus(small, vocabulary=9, cache=cache)
    assert len(list(cache.iterdir())) == 2
    assert same(changed, read_corpus(small, vocabulary=9, cache=None))


def test_another_spacy_gets_another_cache(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read_corpus(small, vocabulary=9, cache=tmp_path / "cache")
    monkeypatch.setattr(sentences, "version", lambda _: "0.0")
    read_corpus(small, vocabulary=9, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("settings", [{"longest": 3, "min_count": 1}, {"longest": 4}, {"min_count": 2}], ids=str)
def test_other_settings_use_the_same_cache(settings: dict, small: Path, tmp_path: Path, request: pytest.FixtureRequest):
    read_corpus(small, vocabulary=9, cache=tmp_path / "cache")
    fresh = read_corpus(small, vocabulary=9, cache=None, **settings)
    request.getfixturevalue("no_tokeniser")
    assert same(fresh, read_corpus(small, vocabulary=9, cache=tmp_path / "cache", **settings))


def cut(content: str) -> str:
    return content[: len(content) // 2]


def another_word(content: str) -> str:
    return content.replace("hund", "mund")


@pytest.mark.parametrize("damage", [cut, another_word, lambda _: "", lambda _: "[]", lambda _: "{}", lambda _: "\0\xff"])
def test_a_damaged_cache_is_ignored_and_rewritten(damage: object, small: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    first = read_corpus(small, vocabulary=9, cache=cache)
    (file,) = cache.iterdir()
    whole = file.read_text()
    assert json.loads(whole)["sentences"]["val.de"] == [["hund"]]
    file.write_text(damage(whole), encoding="latin-1")
    assert same(first, read_corpus(small, vocabulary=9, cache=cache))
    assert file.read_text() == whole
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_no_error(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = read_corpus(small, vocabulary=9, cache=None)
    (tmp_path / "file").write_text("not a directory")
    assert same(first, read_corpus(small, vocabulary=9, cache=tmp_path / "file" / "cache"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert same(first, read_corpus(small, vocabulary=9, cache=tmp_path / "cache"))


@pytest.mark.parametrize("part", ["train", "val", "test_2016_flickr"])
def test_unequal_numbers_of_lines_are_refused_with_both_counts(part: str, small: Path, no_tokeniser: None):
    (small / f"{part}.de").write_text("Hund\n" * 1_234)
    count = SMALL[f"{part}.en"].count("\n")
    with pytest.raises(InputError, match=rf"{part}\.de has 1,234 lines and {part}\.en has {count},"):
        read_corpus(small, vocabulary=9, cache=None)


def test_only_line_feeds_end_a_line(small: Path):
    (small / "val.de").write_text("Ein\u2028Hund\x85 \x0b.", encoding="utf-8")  # str.splitlines would split here
    (small / "train.en").write_bytes(SMALL["train.en"].replace("\n", "\r\n").encode())
    corpus = read_corpus(small, vocabulary=9, cache=None)
    assert [len(part) for part in (corpus.train, corpus.val)] == [3, 1]
    assert corpus.train.references == ["A dog.", "A dog runs.", "A dog sits."]


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_file_is_named_with_what_to_do(name: str, small: Path):
    (small / name).unlink()
    with pytest.raises(InputError) as error:
        read_corpus(small, vocabulary=9, cache=None)
    for words in (str(small), f"{name} is missing", "data_root=DIR", "PUFFERFISH_DATA", "dataset=synthetic_pairs"):
        assert words in str(error.value)
    assert not any(other in str(error.value) for other in SMALL if other != name)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\x1f\x8b\x08\x00", "line 1, byte 2"),
        ("Ein Hund.\nEin Mädchen läuft.\n".encode("latin-1"), "line 2, byte 6"),
        ("Hund".encode("utf-16-le"), "line 1, byte 2"),  # valid UTF-8 that is not text
    ],
)
def test_a_file_that_is_not_text_is_refused_with_its_position_and_not_quoted(small: Path, content: bytes, place: str):
    (small / "val.de").write_bytes(content)
    with pytest.raises(InputError, match=rf"val\.de is not text in UTF-8 \({place} of the line\)") as error:
        read_corpus(small, vocabulary=9, cache=None)
    assert not {"Hund", "dchen", "x1f", "x8b", "xe4"} & set(re.findall(r"\w+", str(error.value)))


@pytest.mark.parametrize("content", ["", "\n\n", " \n\t"])
@pytest.mark.parametrize("part", ["train", "val", "test_2016_flickr"])
def test_files_without_words_are_named(small: Path, part: str, content: str):
    for language in ("de", "en"):
        (small / f"{part}.{language}").write_text(content)
    with pytest.raises(InputError, match=rf"{part}\.de is empty: it has no words"):
        read_corpus(small, vocabulary=9, cache=None)


def test_another_vocabulary_size_is_refused_with_the_size_found(small: Path):
    with pytest.raises(InputError, match=r"dataset\.vocabulary=9521, but .* has 9 words: 4 special.* 3 English and 3 German"):
        read_corpus(small, vocabulary=9521, cache=None)
