"""Language modelling: columns and segments, the state between them, WikiText-2, and synthetic text of known entropy."""

import math
import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.lstm import LanguageModel
from pufferfish_bench.records.files import EPOCHS, read_rows
from pufferfish_bench.tasks.text import synthetic_text
from pufferfish_bench.tasks.text.task import (
    CARRY,
    LanguageModelling,
    carry_as_in_authors_code,
    carry_every_layer,
    columns,
    segments,
)
from pufferfish_bench.tasks.text.wikitext2 import texts, wikitext2
from pufferfish_bench.training.schedules import Clock, on_plateau
from tests.support.commands import Command, assert_same_run, final_state, interrupt

SETTINGS = {"batch_size": 3, "test_batch_size": 2, "segment": 5, "carry": "correct", "world": single_process()}


def task(**changes: object) -> LanguageModelling:
    words = torch.arange(100) % 7
    return LanguageModelling(**{"train": words, "val": words[:40], "test": words[:31]} | SETTINGS | changes)


@given(words=st.integers(2, 200), count=st.integers(1, 20))
def test_columns_are_contiguous_parts_of_the_text(words: int, count: int):
    text = torch.arange(words)
    if words // count < 2:
        with pytest.raises(InputError, match="too few"):
            columns(text, count)
        return
    laid = columns(text, count)
    assert torch.equal(laid.t().flatten(), text[: words // count * count])


@given(rows=st.integers(2, 60), length=st.integers(1, 20))
def test_segments_cover_every_word_once_and_each_is_followed_by_the_next_words(rows: int, length: int):
    text = torch.arange(rows * 2).view(rows, 2)
    parts = list(segments(text, length, 0))
    assert torch.equal(torch.cat([words for words, _, _ in parts]), text[:-1])
    assert torch.equal(torch.cat([following for _, following, _ in parts]), text[1:])
    assert [begins for _, _, begins in parts] == [True] + [False] * (len(parts) - 1)
    for start in range(len(parts) + 1):
        assert len(list(segments(text, length, start))) == len(parts) - start


def test_segments_with_a_carried_state_equal_one_long_text():
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=7, hidden=6, layers=2, dropout=0.0).eval()
    language = task()
    whole, _ = model(language.train[:-1])
    expected = F.cross_entropy(whole.flatten(0, 1), language.train[1:].flatten())
    total = sum(language.loss(model, batch) * language.count(batch) for batch in language.batches(0, 0))
    torch.testing.assert_close(total / language.train[1:].numel(), expected)
    assert language.mean_loss(model, language.train) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_losses_computed_in_parts_equal_the_cross_entropy_of_all_logits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pufferfish_bench.models.lstm.LOGITS", 20)  # logits of two words at a time
    model, words = LanguageModel(vocabulary=7, hidden=6, layers=1, dropout=0.0), torch.randint(7, (4, 3))
    following = torch.randint(7, (4, 3))
    losses, _ = model(words, None, following)
    logits, _ = model(words)
    torch.testing.assert_close(losses, F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none"))


def test_no_gradient_flows_into_the_previous_segment():
    model, language = LanguageModel(vocabulary=7, hidden=6, layers=2, dropout=0.0), task()
    for batch in language.batches(0, 0):
        language.loss(model, batch).backward()  # a backward pass through an earlier segment's graph would be an error
    assert all(not tensor.requires_grad for state in language.states for tensor in state)


def test_the_carried_state_is_each_layers_own_or_that_of_the_authors_code():
    ends = [(torch.full((2, 3), 1.0), torch.full((2, 3), 2.0)), (torch.full((2, 3), 3.0), torch.full((2, 3), 4.0))]
    assert carry_every_layer(ends) is ends
    (h1, c1), (h2, c2) = carry_as_in_authors_code(ends)
    assert torch.equal(h1, ends[1][0])
    assert torch.equal(c1, ends[1][1])
    assert not h2.any()
    assert not c2.any()


def test_the_state_survives_a_checkpoint():
    model, one, other = LanguageModel(vocabulary=7, hidden=6, layers=2, dropout=0.0), task(), task()
    batches = list(one.batches(0, 0))
    for batch in batches[:3]:
        one.loss(model, batch)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.loss(model, batches[3]), other.loss(model, batches[3]))


def test_the_state_of_a_checkpoint_moves_to_the_device_of_the_text():
    language = task()
    language.train = language.train.to("meta")
    language.load_state_dict({"states": [(torch.zeros(3, 6), torch.zeros(3, 6))] * 2})
    assert all(tensor.is_meta for state in language.states for tensor in state)
    language.load_state_dict({"states": None})
    assert language.states is None


@pytest.mark.parametrize("carry", ["correct", "official"])
def test_the_loss_carries_the_state_that_the_setting_names(carry: str):
    torch.manual_seed(0)
    model, language = LanguageModel(vocabulary=7, hidden=6, layers=2, dropout=0.0), task(carry=carry)
    states = None
    for words, following, begins in language.batches(0, 0):
        logits, ends = model(words, states)
        expected = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        torch.testing.assert_close(language.loss(model, (words, following, begins)), expected)
        states = CARRY[carry](ends)


def test_perplexities_are_reported_for_training_validation_and_test():
    model, language = LanguageModel(vocabulary=7, hidden=6, layers=1, dropout=0.0).eval(), task()
    with torch.no_grad():
        assert language.evaluate(model) == {
            "val_ppl": pytest.approx(math.exp(language.mean_loss(model, language.val))),
            "test_ppl": pytest.approx(math.exp(language.mean_loss(model, language.test))),
        }
    assert language.training_figures(2.0) == {"train_ppl": pytest.approx(math.exp(2.0))}
    assert language.training_figures(1e9)["train_ppl"] == math.inf


@pytest.mark.parametrize(("changes", "words"), [({"carry": "both"}, "carry=both"), ({"segment": 0}, "segment=0")])
def test_invalid_settings_are_refused(changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        task(**changes)


def test_the_real_text_has_the_papers_words(data_root: Path):
    parts = texts(data_root / "wikitext-2", 33_278)
    assert [len(part) for part in parts] == [2_088_628, 217_646, 245_569]
    real = wikitext2(
        root=str(data_root), folder="wikitext-2", vocabulary=33_278, train_words=None,
        **SETTINGS | {"batch_size": 20, "test_batch_size": 10, "segment": 35},
    )  # fmt: skip
    assert real.steps(0) == 2_984
    with pytest.raises(InputError, match="33,278 different words"):
        texts(data_root / "wikitext-2", 33_279)
    cut = texts(data_root / "wikitext-2", 3_520)
    assert [len(part) for part in cut] == [2_088_628, 217_646, 245_569]
    assert len({int(word) for part in cut for word in part.unique()}) == 3_520


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path):
    with pytest.raises(InputError, match=r"train\.txt is missing.*data_root=.*synthetic_text"):
        texts(tmp_path / "wikitext-2", 10)


def written(folder: Path, **contents: bytes) -> Path:
    """The three files of a text, some of them with other contents."""
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_bytes(contents.get(part, b"a dog runs\na cat\n"))
    return folder


def test_every_line_ends_with_an_additional_word(tmp_path: Path):
    train, val, test = texts(written(tmp_path, valid="a\u2028dog \r\n\r\nruns\rcat".encode()), 5)
    assert train.tolist() == test.tolist() == [0, 1, 2, 3, 0, 4, 3]
    assert val.tolist() == [0, 1, 3, 3, 2, 3, 4, 3]


def test_a_smaller_vocabulary_turns_the_words_that_are_rarest_in_training_into_unknown_ones(tmp_path: Path):
    files = written(tmp_path, train=b"a a dog dog cat\n", valid=b"cat cat cat\n", test=b"a dog bird <unk>\n")
    assert [part.tolist() for part in texts(files, 4)] == [[0, 0, 1, 1, 2, 3], [2, 2, 2, 3], [0, 1, 3, 3, 3]]  # 3 is <unk>
    assert [part.tolist() for part in texts(files, 5)] == [[0, 0, 1, 1, 2, 3], [2, 2, 2, 3], [0, 1, 4, 4, 3]]  # 4 is <unk>
    assert [part.tolist() for part in texts(files, 6)] == [[0, 0, 1, 1, 2, 3], [2, 2, 2, 3], [0, 1, 4, 5, 3]]  # nothing is cut
    with pytest.raises(InputError, match=r"vocabulary=7, but .* has 6 different words"):
        texts(files, 7)
    (tmp_path / "valid.txt").write_text("many more words than in training\n")
    with pytest.raises(InputError, match="vocabulary=6: the training text has only 5 different words"):
        texts(files, 6)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_text_in_another_encoding_is_refused_with_its_position_and_not_quoted(invoke: Command, tmp_path: Path, part: str):
    (tmp_path / "wikitext-2").mkdir()
    written(tmp_path / "wikitext-2", **{part: "a dog\nuna niña corre\n".encode("latin-1")})
    refused = invoke("model=lstm", "profile=cpu", "dataset.vocabulary=5", "data_root=.")
    assert refused.returncode == 2
    (sentence,) = refused.stderr.splitlines()
    assert f"wikitext-2/{part}.txt is not text in UTF-8 (line 2, byte 7 of the line)" in sentence
    assert not any(word in sentence for word in ("corre", "xf1", "b'"))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_file_without_words_is_named(tmp_path: Path, part: str, content: bytes):
    with pytest.raises(InputError, match=rf"{part}\.txt is empty: it has no words"):
        texts(written(tmp_path, **{part: content}), 5)


def test_the_entropy_rate_is_the_mean_surprise_of_the_true_distribution():
    probability, following = synthetic_text.distributions()
    assert probability.sum(1) == pytest.approx([1.0] * len(synthetic_text.GRAMMAR))
    state, surprise, count = synthetic_text.SUBJECT, 0.0, 200_000
    for word in synthetic_text.sample_text(count, seed=3).tolist():
        assert probability[state, word] > 0
        surprise -= math.log(probability[state, word])
        state = following[state, word]
    assert surprise / count == pytest.approx(synthetic_text.entropy_rate(), rel=0.005)


def test_synthetic_text_reports_its_lowest_perplexity():
    small = synthetic_text.synthetic_text(train_words=900, test_words=300, vocabulary=45, **SETTINGS)
    assert f"{math.exp(synthetic_text.entropy_rate()):.2f}" in small.note
    train, test = (synthetic_text.sample_text(300, seed=seed) for seed in (0, synthetic_text.TEST_SEED))
    assert not torch.equal(train, test)


@pytest.mark.parametrize(
    "settings",
    [
        ("model=lstm", "model.net.hidden=16", "dataset.train_words=8000", "dataset.test_words=400", "method.warmup_epochs=2"),
        ("model=transformer", "model.net.width=16", "dataset.train_pairs=600", "dataset.test_pairs=5", "method.warmup_epochs=2"),
    ],
    ids=["lstm", "transformer"],
)
def test_a_run_stopped_in_the_middle_of_an_epoch_resumes_to_the_same_end(
    invoke: Command, arguments, tmp_path: Path, settings: tuple[str, ...]
):
    settings = ("profile=smoke", "method=pufferfish", "model.net.dropout=0.2", "epochs=4", "checkpoint_every=4", *settings)
    assert invoke(*settings, "run_dir=whole").returncode == 0
    words = arguments(*settings, "run_dir=stopped")
    stopped = interrupt(words, tmp_path, signal.SIGTERM, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 2)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert final_state(tmp_path / "stopped")["step"] >= 1
    assert invoke(*settings, "run_dir=stopped").returncode == 0
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def rates(history: list[float], switch: int | None) -> list[float]:
    settings = {"learning_rate": 16.0, "factor": 0.25, "switch_factor": 0.5}
    clocks = [Clock(e, 0, 1, 0 if switch is None or e < switch else switch, history[:e]) for e in range(len(history) + 1)]
    return [on_plateau(clock, **settings) for clock in clocks]


def test_the_rate_falls_after_every_epoch_that_is_no_better_than_the_best_and_at_the_switch():
    assert rates([5.0, 4.0, 4.0, 3.0, 3.5, 2.0], None) == [16, 16, 16, 4, 4, 1, 1]
    # the best before the switch counts after it, as in the authors' code
    assert rates([5.0, 3.0, 4.0, 3.5, 2.0], 2) == [16, 16, 8, 2, 0.5, 0.5]
