"""Sentences: encoded and decoded, tokenised and joined again."""

from pathlib import Path

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.tasks.translation.corpus import END, PAD, SPECIAL, START, UNKNOWN, decode, encode
from pufferfish_bench.tasks.translation.tokenisation import detokenise, tokenise

VOCABULARY = [*SPECIAL, "a", "dog", "runs"]
TABLE = {word: number for number, word in enumerate(VOCABULARY)}


@given(st.lists(st.sampled_from(VOCABULARY[4:])))
def test_decoding_inverts_encoding(words: list[str]):
    numbers = encode(words, TABLE)
    assert numbers.dtype == torch.int64
    assert numbers.shape == (len(words) + 2,)
    assert (numbers[0], numbers[-1]) == (START, END)
    assert decode(numbers, VOCABULARY) == " ".join(words)


def test_words_outside_the_vocabulary_are_unknown_and_decoding_stops_at_the_end():
    assert encode(["a", "cat"], TABLE).tolist() == [START, 4, UNKNOWN, END]
    assert decode([PAD, START, 4, PAD, UNKNOWN, 5, END, 6, END], VOCABULARY) == "a <unk> dog"
    assert decode([4, 6], VOCABULARY) == "a runs"
    assert [SPECIAL[number] for number in (UNKNOWN, PAD, START, END)] == ["<unk>", "<blank>", "<s>", "</s>"]


def test_sentences_are_tokenised_by_the_rules_of_the_language_and_lower_cased():
    assert tokenise("en", ["A man isn't here.", ""]) == [["a", "man", "is", "n't", "here", "."], []]
    assert tokenise("de", ["Ein Mann, z.B. Ötzi"]) == [["ein", "mann", ",", "z.b.", "ötzi"]]
    assert tokenise("en", ["a  dog"]) == [["a", " ", "dog"]]  # spaCy makes a word of the second space


SENTENCES = (
    "a dog's owner isn't there, and they're sad.",
    "a middle-aged man in a t-shirt (no. 5) plays tug-of-war!",
    "a sign that says \"don't walk\" hangs at the boys' school.",
    "what's 50% of 'this'?",
    "twenty one",
    "",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_detokenising_inverts_tokenising(sentence: str):
    (words,) = tokenise("en", [sentence])
    assert detokenise(" ".join(words)) == sentence


def test_the_real_references_tokenised_and_detokenised_have_a_bleu_of_100(data_root: Path):
    for part in ("val", "test_2016_flickr"):
        references = (data_root / "multi30k" / f"{part}.en").read_text(encoding="utf-8").strip("\n").split("\n")
        words = [" ".join(words) for words in tokenise("en", references)]
        score = sacrebleu.BLEU(lowercase=True, force=True).corpus_score
        assert score([detokenise(line) for line in words], [references]).score == pytest.approx(100.0)
        assert score(words, [references]).score < 98  # without detokenising
