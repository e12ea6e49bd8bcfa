"""Own data by settings alone: pictures by class, a text, a parallel corpus. Sizes are counted before the data are read."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import translate
from pufferfish_bench.config.build import build, composed, config_errors
from pufferfish_bench.config.settings import identity
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.tasks import splits
from pufferfish_bench.tasks.images import class_folders, image_folder
from pufferfish_bench.tasks.translation.corpus import SPECIAL, decode
from tests.support.commands import Command
from tests.support.pictures import CLASSES, PER_CLASS

LINES = [f"a b{number % 5} c{number}" for number in range(40)]
PARALLEL = ("model=transformer", "dataset=parallel_text", "dataset.source_file=my.fr", "dataset.target_file=my.en")
FRENCH = [f"un chat noir, {number % 4}" for number in range(40)]
ENGLISH = [f"A black cat's {number % 4}" for number in range(40)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, lines in {"my.txt": LINES, "my.fr": FRENCH, "my.en": ENGLISH}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def settings(*words: str):
    with config_errors():
        return composed(["profile=smoke", *words])


def task_of(*words: str):
    with config_errors():
        return build("dataset", settings(*words).dataset, world=single_process())


@given(count=st.integers(3, 200), held_out=st.tuples(st.floats(0.01, 0.4), st.floats(0.01, 0.4)))
def test_one_file_is_split_without_loss_in_the_order_of_its_lines(tmp_path_factory, count: int, held_out: tuple[float, float]):
    root = tmp_path_factory.mktemp("text")
    lines = [f"line {number}" for number in range(count)]
    (root / "text").write_text("\n".join(lines))
    shares = (1 - sum(held_out), *held_out)
    parts = splits.read_parts(root, "file", "text", shares)
    assert [line for part in parts for line in part] == lines
    assert all(parts)
    assert abs(len(parts[0]) - shares[0] * count) <= 2


def test_a_text_file_is_modelled_with_its_counted_vocabulary(here: Path):
    words = ("model=lstm", "dataset=text_file", "dataset.file=my.txt", "batch_size=2", "dataset.test_batch_size=2")
    vocabulary = 1 + 5 + 40 + 1  # a, b0 to b4, c0 to c39, <eos>
    assert settings(*words).dataset.vocabulary == settings(*words).model.net.vocabulary == vocabulary
    whole = task_of(*words)
    assert whole.train.numel() == 32 * 4
    assert len(set(whole.train.flatten().tolist())) == 1 + 5 + 32 + 1
    cut = task_of(*words, "dataset.vocabulary=8")
    assert int(max(cut.train.max(), cut.val.max(), cut.test.max())) == 7


def test_three_text_files_give_the_same_as_one_that_is_split(here: Path):
    for name, part in (("t", LINES[:32]), ("v", LINES[32:36]), ("e", LINES[36:])):
        (here / name).write_text("\n".join(part))
    words = ("model=lstm", "dataset=text_file", "batch_size=2", "dataset.test_batch_size=2")
    one, three = (task_of(*words, f"dataset.file={file}") for file in ("my.txt", "[t,v,e]"))
    for name in ("train", "val", "test"):
        assert getattr(one, name).equal(getattr(three, name))


@pytest.mark.parametrize(("tokens", "first"), [("spaces", ["A", "black", "cat's"]), ("spacy", ["a", "black", "cat", "'s"])])
def test_a_parallel_text_in_any_language_is_read_with_its_counted_vocabulary(tokens: str, first: list[str]):
    words = (
        "model=transformer", "dataset=parallel_text", "dataset.source_file=my.fr", "dataset.target_file=my.en",
        "dataset.languages=[fr,en]", f"dataset.tokens={tokens}",
    )  # fmt: skip
    corpus = task_of(*words).corpus
    assert len(corpus.vocabulary) == settings(*words).model.net.vocabulary
    assert corpus.vocabulary[: len(SPECIAL)] == list(SPECIAL)
    assert decode(corpus.train.target[0], corpus.vocabulary).split() == [*first, "0"]
    assert corpus.train.references[0] == ENGLISH[0]
    assert [len(part) for part in (corpus.train, corpus.val, corpus.test)] == [32, 4, 4]
    cut = task_of(*words, "dataset.vocabulary=7").corpus
    assert len(cut.vocabulary) == 7


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("model=lstm", "dataset=text_file"), "dataset.file is not set"),
        (("model=lstm", "dataset=text_file", "dataset.file=nope"), "dataset.file=nope: there is no file"),
        (("model=lstm", "dataset=text_file", "dataset.file=[my.txt,my.en]"), "one file is expected, or three"),
        (
            ("model=lstm", "dataset=text_file", "dataset.file=my.txt", "dataset.shares=[1,1,1]"),
            "must be three numbers",
        ),
        (
            ("model=transformer", "dataset=parallel_text", "dataset.source_file=short", "dataset.target_file=my.en"),
            "needs its translation",
        ),
        (("model=resnet18", "dataset=image_folder", "dataset.folder=nope"), "dataset.folder=nope: there is no such folder"),
        (("model=lstm", "dataset=text_file", "dataset.file=null"), "dataset.file=null: a string or a list whose items are"),
        (("model=lstm", "dataset=text_file", "dataset.file=my.txt", "dataset.shares=0.5"), "dataset.shares=0.5: a list whose"),
        ((*PARALLEL, "dataset.languages=fr"), "dataset.languages=fr: a list whose items are each a string is expected"),
        ((*PARALLEL, "dataset.languages=[fr,nope]"), "language nope of dataset.languages cannot be loaded"),
        ((*PARALLEL, "dataset.longest=null"), "dataset.longest=null: an integer is expected"),
        ((*PARALLEL, "dataset.min_count=1000"), "no word occurs at least 1000 times"),
    ],
)
def test_a_mistake_is_named(here: Path, words: tuple[str, ...], sentence: str):
    (here / "short").write_text("\n".join(FRENCH[:30]))
    with pytest.raises(InputError) as refused:
        settings(*words)
    assert sentence in str(refused.value)
    assert "interpolation" not in str(refused.value)


def test_the_classes_of_a_folder_are_counted_with_and_without_train_and_val(root: Path):
    folder = root / "pictures"
    words = ("model=resnet18", "dataset=image_folder", f"dataset.folder={folder}")
    assert settings(*words).model.net.classes == len(CLASSES)
    assert settings(*words[:-1], f"dataset.folder={folder}/train").model.net.classes == len(CLASSES)
    assert class_folders.count_classes(folder) == class_folders.count_classes(folder / "val") == len(CLASSES)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_folder_without_train_is_split_within_each_class_and_always_alike(root: Path, share: float):
    folder = root / "pictures" / "train"
    parts = image_folder.train_and_val(folder, len(CLASSES), share)
    assert parts == image_folder.train_and_val(folder, len(CLASSES), share)
    (train, labels), (val, val_labels) = parts
    assert sorted([*train, *val]) == sorted(image_folder.list_pictures(folder, sorted(CLASSES))[0])
    assert not set(train) & set(val)
    held_out = min(PER_CLASS - 1, max(1, round(share * PER_CLASS)))
    for label in range(len(CLASSES)):
        assert (labels.count(label), val_labels.count(label)) == (PER_CLASS - held_out, held_out)


def test_a_finished_run_translates_with_the_tokens_it_was_trained_with(
    invoke: Command, here: Path, capsys: pytest.CaptureFixture
):
    (here / "upper.fr").write_text("\n".join(line.upper() for line in FRENCH))
    words = ("dataset=parallel_text", "dataset.source_file=upper.fr", "dataset.target_file=my.en", "dataset.tokens=spaces")
    done = invoke("model=transformer", "profile=smoke", *words, "epochs=1", "model.net.width=16", "run_dir=run")
    assert done.returncode == 0, done.stderr
    translate.main(["run=run", "UN CHAT NOIR, 3"])
    assert capsys.readouterr().err == ""  # it knows these words, which spaCy would have split and lower-cased
    translate.main(["run=run", "un chat"])
    assert "not in the model's vocabulary, translated as unknown words: un, chat" in capsys.readouterr().err


def record_identity(*words: str) -> str:
    with config_errors():
        return identity(settings(*words))


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("model=lstm", "dataset=text_file", "dataset.file=my.txt"), "my.txt"),
        (("model=transformer", "dataset=parallel_text", "dataset.source_file=my.fr", "dataset.target_file=my.en"), "my.en"),
    ],
)
def test_with_another_text_of_as_many_words_it_is_another_run(here: Path, words: tuple[str, ...], file: str):
    text = (here / file).read_text()
    before = record_identity(*words)
    assert record_identity(*words) == before
    (here / file).write_text("\n".join(reversed(text.splitlines())) + "\n")
    assert settings(*words).dataset.vocabulary > 0
    assert record_identity(*words) != before
    (here / file).write_text(text)
    assert record_identity(*words) == before


def test_with_one_picture_less_it_is_another_run_and_the_folder_may_move(here: Path, root: Path):
    shutil.copytree(root / "pictures", here / "a" / "pictures")
    shutil.copytree(root / "pictures", here / "b" / "pictures")
    words = ("model=resnet18", "dataset=image_folder", "dataset.folder=pictures")
    one, other = (record_identity(*words, f"dataset.source.root={place}") for place in "ab")
    assert one == other
    (here / "b" / "pictures" / "results").mkdir()
    (here / "b" / "pictures" / "results" / "run.json").write_text("a run in the folder of the pictures")
    assert record_identity(*words, "dataset.source.root=b") == one
    next((here / "b" / "pictures" / "train").rglob("*.*")).unlink()
    assert record_identity(*words, "dataset.source.root=b") != one


def test_a_run_does_not_resume_with_other_data(invoke: Command, here: Path):
    words = ("model=lstm", *("profile=smoke", "model.net.hidden=8", "batch_size=2", "dataset.test_batch_size=2", "epochs=1"))
    text = ("dataset=text_file", "dataset.file=my.txt", "run_dir=run")
    assert invoke(*words, *text).returncode == 0
    (here / "my.txt").write_text("\n".join(reversed(LINES)) + "\n")
    refused = invoke(*words, *text)
    assert refused.returncode == 2
    assert "holds a run with other settings (dataset.contents: " in refused.stderr


def test_train_without_val_names_the_remedy(root: Path, here: Path):
    shutil.copytree(root / "pictures" / "train", here / "own" / "train")
    with pytest.raises(InputError, match=r"hold out pictures of train/ for validation with dataset\.folder=own/train"):
        image_folder.train_and_val(Path("own"), len(CLASSES), 0.1)
