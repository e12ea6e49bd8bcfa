"""Masked language modelling: which words are masked, what is restored, and that ranks and resumed runs agree."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.hugging_face import decoder, encoder
from pufferfish_bench.models.masking import Masking
from pufferfish_bench.tasks.text.task import NOTHING, LanguageModelling, masked_words

PARTS = ("train", "val", "test")
WORDS = 11
SIZES: dict[str, Any] = {"vocabulary": WORDS, "width": 8, "layers": 1, "heads": 2, "positions": 16}


def task(model: nn.Module) -> LanguageModelling:
    texts = {name: torch.randint(WORDS, (400,), generator=torch.Generator().manual_seed(n)) for n, name in enumerate(PARTS)}
    made = LanguageModelling(**texts, batch_size=4, test_batch_size=2, segment=7, carry="correct", world=single_process())
    made.prepare(model, [])
    return made


class Uniform(nn.Module):
    """Every word is as likely as any other; remembers what it was asked."""

    masking = Masking(share=0.3, word=WORDS, seed=5)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Tensor, Tensor]] = []

    def forward(self, words: Tensor, states: Any = None, following: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        if following is None:
            return torch.zeros(*words.shape, WORDS), ()
        self.asked.append((words, following))
        return torch.where(following.flatten() >= 0, math.log(WORDS), 0.0), ()


def test_masked_words_are_replaced_and_only_they_are_to_be_restored():
    language = task(Uniform())
    masked = 0
    for number, (words, targets, begins) in enumerate(language.batches(0, 0)):
        text = language.train[7 * number : 7 * number + len(words)]
        hidden = targets != NOTHING
        assert torch.equal(words == WORDS, hidden)
        assert torch.equal(targets[hidden], text[hidden])
        assert torch.equal(words[~hidden], text[~hidden])
        assert begins == (number == 0)
        assert int(language.count((words, targets, begins))) == max(1, int(hidden.sum()))
        masked += int(hidden.sum())
    assert 0.2 < masked / language.train.numel() < 0.4


def test_masks_differ_between_epochs_and_seeds_and_do_not_depend_on_where_an_epoch_resumes():
    language = task(Uniform())
    whole = list(language.batches(3, 0))
    for one, other in zip(language.batches(3, 4), whole[4:], strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert not all(torch.equal(one[0], other[0]) for one, other in zip(whole, language.batches(4, 0), strict=True))
    assert not torch.equal(masked_words(100, 0.3, 1, 0), masked_words(100, 0.3, 2, 0))


def test_the_pseudo_perplexity_is_that_of_the_masked_words_and_its_masks_are_the_same_in_all_runs():
    model, other = Uniform(), Uniform()
    other.masking = Masking(share=0.3, word=WORDS, seed=6)
    language, elsewhere = task(model), task(other)
    assert language.evaluate(model) == {name: pytest.approx(WORDS) for name in ("val_ppl", "test_ppl")}
    elsewhere.evaluate(other)
    assert model.asked
    for one, two in zip(model.asked, other.asked, strict=True):
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize(("make", "kind"), [(encoder, "bert"), (decoder, "gpt2"), (decoder, "llama")])
def test_a_model_of_hugging_face_returns_the_cross_entropy_of_its_logits(make: Callable[..., nn.Module], kind: str):
    torch.manual_seed(0)
    model = make(**SIZES, model_type=kind).eval()
    words, following = torch.randint(WORDS, (2, 5, 3))
    following[1:3] = NOTHING
    logits, ends = model(words)
    losses, _ = model(words, None, following)
    expected = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=NOTHING, reduction="none")
    assert len(ends) == 0
    torch.testing.assert_close(losses, expected)
    assert (losses.view(5, 3)[1:3] == 0).all()


def test_a_decoder_sees_only_the_past_and_an_encoder_both_sides():
    words = torch.arange(6)[:, None]
    changed = words.clone()
    changed[5] = 9
    for make, kind, sees_future in ((encoder, "bert", True), (decoder, "gpt2", False)):
        torch.manual_seed(0)
        model = make(**SIZES, model_type=kind).eval()
        same = torch.allclose(model(words)[0][:5], model(changed)[0][:5], atol=1e-7)
        assert same != sees_future


def test_every_word_of_an_encoder_is_trained_also_number_zero():
    torch.manual_seed(0)
    model = encoder(**SIZES, model_type="bert")
    losses, _ = model(torch.zeros(5, 2, dtype=torch.long), None, torch.ones(5, 2, dtype=torch.long))
    losses.sum().backward()
    table = next(module for module in model.modules() if isinstance(module, nn.Embedding))
    assert table.num_embeddings == WORDS + 1  # the last is the mask
    assert table.padding_idx is None
