"""Translation from end to end: batches, perplexity, BLEU, the files of a run, and the translate command."""

import io
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import sacrebleu
import torch
import torch.nn.functional as F

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import translate
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.transformer import Transformer
from pufferfish_bench.records.files import RUN, read_json
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.compare import compare
from pufferfish_bench.tasks.translation import synthetic_pairs
from pufferfish_bench.tasks.translation.beam_search import beam_search
from pufferfish_bench.tasks.translation.corpus import PAD, SPECIAL, Corpus, WordPair, encode_pairs
from pufferfish_bench.tasks.translation.task import Translation
from pufferfish_bench.tasks.translation.tokenisation import tokenise
from pufferfish_bench.training.schedules import Clock, noam
from tests.support.commands import Command
from tests.support.repository import REPOSITORY

SETTINGS = {
    "batch_size": 7, "test_batch_size": 4, "bucketed": False, "label_smoothing": 0.0, "beam": 2, "alpha": 0.7, "longest": 12,
    "positions": 40, "seed": 1, "world": single_process(),
}  # fmt: skip


def task(**changes: object) -> Translation:
    return Translation(corpus=synthetic_pairs.make_corpus(train=50, test=10), **SETTINGS | changes)


def net(vocabulary: int) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        vocabulary=vocabulary, width=16, heads=2, inner=32, layers=1, dropout=0.0, positions=40, padding=PAD, gain=1.0
    ).eval()


@pytest.mark.parametrize("bucketed", [False, True])
def test_every_pair_is_in_one_batch_of_an_epoch_and_epochs_and_seeds_differ(bucketed: bool):
    orders = [task(seed=seed, bucketed=bucketed).order(epoch) for seed in (1, 2) for epoch in (0, 1)]
    for order in orders:
        assert sorted(numpy.concatenate(order).tolist()) == list(range(50))
        assert len(order) == task().steps(0) == 8
    assert len({tuple(numpy.concatenate(order).tolist()) for order in orders}) == 4


@pytest.mark.parametrize("bucketed", [False, True])
def test_an_epoch_resumed_in_the_middle_gives_the_remaining_batches(bucketed: bool):
    pairs = task(bucketed=bucketed)
    whole = list(pairs.batches(2, 0))
    for start in (0, 3, 8):
        rest = list(pairs.batches(2, start))
        assert len(rest) == len(whole) - start
        for batch, same in zip(rest, whole[start:], strict=True):
            assert all(torch.equal(side, other) for side, other in zip(batch, same, strict=True))


def test_bucketed_batches_hold_sentences_of_similar_length():
    def padding(bucketed: bool) -> int:
        return sum(int((target == PAD).sum()) for _, target in task(bucketed=bucketed).batches(0, 0))

    assert padding(True) < padding(False) / 2


def test_the_loss_is_the_mean_over_words_and_ignores_padding():
    pairs = task()
    model, batch = net(len(pairs.corpus.vocabulary)), next(pairs.batches(0, 0))
    source, target = batch
    total, words = 0.0, 0
    for row in range(len(source)):
        one, other = (side[row][side[row] != PAD] for side in (source, target))
        total += F.cross_entropy(model(one[None], other[None, :-1])[0], other[1:], reduction="sum")
        words += len(other) - 1
    torch.testing.assert_close(pairs.loss(model, batch), total / words)
    assert int(pairs.count(batch)) == words


def test_labels_are_smoothed_in_training_and_not_in_evaluation():
    plain, smoothed = task(), task(label_smoothing=0.1)
    words = len(plain.corpus.vocabulary)
    model, batch = net(words), next(plain.batches(0, 0))
    source, target = batch
    with torch.no_grad():
        rates = -model(source, target[:, :-1]).log_softmax(-1)[target[:, 1:] != PAD]
        right = rates.gather(1, target[:, 1:][target[:, 1:] != PAD][:, None])[:, 0]
        expected = 0.9 * right + 0.1 * (rates.sum(1) - right) / (words - 1)  # the wrong words share a tenth of the target
        torch.testing.assert_close(smoothed.loss(model, batch), expected.mean())
        torch.testing.assert_close(plain.loss(model, batch), right.mean())
        assert smoothed.evaluate(model) == plain.evaluate(model)


def test_perplexity_does_not_depend_on_the_batches():
    with torch.no_grad():
        one, other = (task(test_batch_size=size) for size in (3, 10))
        model = net(len(one.corpus.vocabulary))
        figures, same = one.evaluate(model), other.evaluate(model)
    assert figures == pytest.approx(same, rel=1e-5)
    assert figures.keys() == {"val_ppl", "test_ppl"}
    assert one.training_figures(1.0) == {"train_ppl": pytest.approx(math.e)}


def written() -> Corpus:
    """One sentence whose words, joined by spaces, differ from how it is written."""
    reference = "A middle-aged man's dog isn't in a t-shirt."
    (words,) = tokenise("en", [reference])
    vocabulary = [*SPECIAL, *dict.fromkeys(words)]
    pairs = encode_pairs([WordPair(["a"], words, reference)], vocabulary)
    return Corpus(vocabulary=vocabulary, train=pairs, val=pairs, test=pairs, languages=("de", "en"))


@pytest.mark.parametrize("corpus", [synthetic_pairs.make_corpus(train=50, test=10), written()], ids=["numbers", "written"])
def test_a_model_that_knows_the_answers_has_a_bleu_of_one_hundred(corpus: Corpus, monkeypatch: pytest.MonkeyPatch):
    pairs = Translation(corpus=corpus, **SETTINGS | {"longest": 20})
    answers = {tuple(pair[0].tolist()): pair[1] for part in (pairs.corpus.val, pairs.corpus.test)
               for pair in zip(part.source, part.target, strict=True)}  # fmt: skip
    monkeypatch.setattr(
        "pufferfish_bench.tasks.translation.beam_search.translate",
        lambda model, sources, **_: [answers[tuple(s.tolist())][1:-1] for s in sources],
    )
    results = pairs.final_results(net(len(pairs.corpus.vocabulary)))
    assert results.figures["val_bleu"] == results.figures["test_bleu"] == pytest.approx(100.0)
    assert "case:lc" in results.figures["bleu"]
    assert sacrebleu.__version__ in results.figures["bleu"]
    assert results.files["val.translations.txt"].splitlines() == [line.lower() for line in corpus.val.references]
    assert results.files["vocabulary.txt"].split("\n")[:-1] == pairs.corpus.vocabulary


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beam": 0}, "beam=0"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"alpha": -0.1}, r"alpha=-0\.1"),
        ({"longest": 41}, "positions=40 must be at least 41: dataset.longest=41"),
        ({"positions": 12}, "positions=12 must be at least 13: .* longest sentence of the data needs 13"),
    ],
)
def test_invalid_settings_are_refused(changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        task(**changes)


def test_the_learning_rate_rises_over_the_warm_up_and_falls_with_the_root_of_the_steps():
    def rate(step: int, *, start: int = 0, restart: bool = False) -> float:
        clock = Clock(epoch=step // 10, step=step % 10, steps=10, phase_start=start)
        return noam(clock, factor=2.0, width=512, warmup_steps=40, restart=restart)

    assert rate(0) == pytest.approx(2 * 512**-0.5 * 40**-1.5)
    assert max(range(200), key=rate) == 39
    assert rate(159) == pytest.approx(rate(39) / 2)
    assert rate(50, start=5, restart=True) == rate(0)
    assert rate(50, start=5, restart=False) == rate(50)


@pytest.mark.parametrize("method", ["vanilla", "pufferfish"])
def test_a_finished_run_has_its_bleu_and_translates_in_the_same_way_again(
    invoke: Command, tmp_path: Path, method: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    settings = (
        "model=transformer", "profile=smoke", f"method={method}", "run_dir=run", "epochs=2", "warmup_epochs=1",
        "model.net.width=16", "model.net.inner=32", "dataset.train_pairs=100", "dataset.test_pairs=9",
    )  # fmt: skip
    finished = invoke(*settings)
    assert finished.returncode == 0, finished.stderr
    assert "val_bleu" in finished.stdout
    summary = read_json(tmp_path / "run" / RUN)["summary"]
    assert {"val_bleu", "test_bleu", "bleu", "val_ppl"} <= summary.keys()
    (further,) = compare([Record.read(tmp_path / "run")])[0].columns[-1].cells
    assert further == ", ".join(f"{name} {summary[name]:.2f}" for name in ("train_ppl", "test_ppl", "val_bleu", "test_bleu"))
    said = (tmp_path / "run" / "val.translations.txt").read_text().splitlines()
    assert len(said) == 9

    corpus = synthetic_pairs.make_corpus(train=100, test=9)
    german = [" ".join(corpus.vocabulary[number] for number in sentence[1:-1]) for sentence in corpus.val.source]
    capsys.readouterr()
    translate.main(["run=run", *german])
    assert capsys.readouterr().out.splitlines() == said
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(german) + "\n"))
    translate.main(["run=run"])
    assert capsys.readouterr().out.splitlines() == said


def test_lines_that_cannot_be_translated_keep_their_place(
    invoke: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    settings = ("model=transformer", "profile=smoke", "run_dir=run", "epochs=1", "model.net.width=16", "dataset.train_pairs=100")
    assert invoke(*settings, "dataset.test_pairs=2", "dataset.test_batch_size=3", "model.net.positions=30").returncode == 0
    translate.main(["run=run", "eins", "zwei", "drei"])
    one, two, three = capsys.readouterr().out.splitlines()
    batches = []
    monkeypatch.setattr(
        "pufferfish_bench.tasks.translation.beam_search.beam_search",
        lambda model, source, **search: batches.append(len(source)) or beam_search(model, source, **search),
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"eins\n\nzwei\n{'eins ' * 29}\ndrei"))
    translate.main(["run=run"])
    out, err = capsys.readouterr()
    assert out.split("\n") == [one, "", two, "", three, ""]
    assert err.startswith("warning: not translated, 29 words are too many")
    assert batches == [2, 1]  # three lines at a time, the empty and the long one left out
    with pytest.raises(InputError, match="there is no setting beam=1"):
        translate.main(["run=run", "beam=1", "eins"])


def test_words_that_the_model_does_not_know_are_named_once_and_the_translation_still_comes(
    invoke: Command, capsys: pytest.CaptureFixture
):
    settings = ("model=transformer", "profile=smoke", "run_dir=run", "epochs=1", "model.net.width=16", "dataset.train_pairs=100")
    assert invoke(*settings, "dataset.test_pairs=2", "dataset.test_batch_size=1").returncode == 0
    translate.main(["run=run", "ein Hund und zwei", "zwei", "zwei Hund Hund", "eine Katze <s>"])
    out, err = capsys.readouterr()
    lines = out.split("\n")
    assert len(lines) == 5  # one for each sentence, and the end
    assert lines[0]
    warnings = [line.partition(": not in the model's vocabulary, translated as unknown words: ") for line in err.splitlines()]
    assert [(start, words) for start, _, words in warnings] == [("warning", "hund"), ("warning", "eine, katze, <, s, >")]


def test_the_example_of_the_docs_gives_the_answer_that_it_prints(tmp_path: Path):
    page = (REPOSITORY / "docs/data.md").read_text()
    (block,) = (block for block in page.split("```") if "\npufferfish-translate " in block)
    train, ask = block.strip().splitlines()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(line: str) -> str:
        finished = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    typed(train)
    assert typed(ask) == "three hundred forty seven\n"
    command = ask.partition(' "')[0]
    assert typed(f"{command} null zwölf 'sieben und vierzig'").splitlines() == ["zero", "twelve", "forty seven"]
    assert ask.endswith("# three hundred forty seven")


def test_a_run_that_cannot_translate_is_refused(invoke: Command, tmp_path: Path):
    with pytest.raises(InputError, match="no run in nowhere"):
        translate.main(["run=nowhere", "ein"])
    invoke(
        "profile=smoke", "model.net.width=0.05", "epochs=1", "dataset.train_images=40", "dataset.test_images=10", "run_dir=images"
    )
    with pytest.raises(InputError, match="is not a translation run"):
        translate.main(["run=images", "ein"])
    with pytest.raises(InputError, match="give one run=DIR, the directory of a finished translation run; got 0"):
        translate.main(["ein mann"])
