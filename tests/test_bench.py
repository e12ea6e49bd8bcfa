"""How speed is compared: contenders take turns, a ratio is that of neighbours, and what is done is not done again.

Every benchmark runs at toy size, the lab's in test_netlab.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from pufferfish_bench.bench import beam, compression, interleaved, lab, loader, lstm, step
from pufferfish_bench.records import read_json
from pufferfish_bench.speech import spoken_errors
from tests.conftest import REPOSITORY, Command
from tests.reported import write_record
from tests.test_crops import photograph
from tests.test_pairs import SMALL

ALL = (beam, compression, lab, loader, lstm, step)


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order = []
    taken = interleaved.seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_rounds_whatever_one_disturbed_round_says():
    assert interleaved.ratio([2.0, 4.0, 90.0], [1.0, 2.0, 3.0]) == 2.0
    assert interleaved.ratio([1.0, 1.0], [4.0, 4.0]) == pytest.approx(0.25)


def test_a_cell_of_the_lab_is_run_again_only_for_another_number_of_steps(tmp_path: Path):
    settings = {"dataset": {"train_images": lab.images(2, 5)}}
    done = write_record(tmp_path / "done", settings=settings)
    stopped = write_record(tmp_path / "stopped", settings=settings, finished=None)
    assert [lab.done(folder) for folder in (done, stopped, tmp_path / "none")] == [True, False, False]
    assert [lab.done(done, lab.images(2, steps)) for steps in (4, 5, 6)] == [False, True, False]
    places = {lab.work("vanilla", 2, "1gbit", steps) for steps in (4, 5)}  # where the older run would be in the way
    assert len(places) == 2


def test_the_lstm_benchmark_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture):
    lstm.measure(hidden=12, batch_size=3, steps=4, rank=3, rounds=2, out=tmp_path)
    figures = read_json(tmp_path / "lstm.json")
    assert figures["settings"] == {"hidden": 12, "batch_size": 3, "steps": 4, "rank": 3, "rounds": 2}
    for memory in ("as it comes", "kept"):
        fused, ours = figures["seconds"][memory].values()
        assert len(fused) == len(ours) == 2
        assert figures["times_as_fast"][memory] == interleaved.ratio(fused, ours)
    assert "low-rank (3)" in capsys.readouterr().out


def test_the_compression_benchmark_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture):
    compression.measure(width=0.05, few=50, rounds=2, out=tmp_path)
    figures = read_json(tmp_path / "compression.json")
    assert list(figures["seconds"]) == ["PowerSGD, rank 2", "packing signs", "packing all signs"]
    assert all(len(seconds) == 2 for ways in figures["seconds"].values() for seconds in ways.values())
    assert len(figures["times_as_long"]) == 7
    assert f"{figures['settings']['gradients']:,} gradients" in capsys.readouterr().out


def test_the_step_benchmark_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture):
    step.measure(batch_size=2, image_size=64, width=0.05, rounds=1, out=tmp_path)
    figures = read_json(tmp_path / "step.json")
    assert list(figures["nets"]) == list(step.NETS)
    for net in figures["nets"].values():
        before, after = net["parameters"]
        assert before > after
        assert net["times_as_fast"] == interleaved.ratio(net["seconds"]["before"], net["seconds"]["after"])
    assert "wrn50_2" in capsys.readouterr().out


def test_the_loader_benchmark_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / "train" / name).mkdir(parents=True)
        for number in range(3):
            picture = Image.fromarray(photograph(30, 40, seed=number))
            picture.save(tmp_path / "pets" / "train" / name / f"{number}.jpg")
    loader.measure(tmp_path / "pets" / "train", pictures=12, batch_size=5, size=16, rounds=1, out=tmp_path)
    figures = read_json(tmp_path / "loader-pets.json")
    assert figures["settings"] == {"pictures": 12, "batch_size": 5, "image_size": 16, "rounds": 1}
    found = [(entry["loader"], entry["workers"]) for entry in figures["loaders"]]
    assert found == [(name, workers) for workers in (1, 2) for name in (loader.TORCHVISION, loader.OURS, loader.CACHED)]
    assert "12 pictures" in capsys.readouterr().out


def test_the_beam_benchmark_writes_what_it_measured(
    invoke: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "multi30k").mkdir()
    for name, text in SMALL.items():
        (tmp_path / "multi30k" / name).write_text(text, encoding="utf-8")
    settings = ("model=transformer", "profile=cpu", "model.width=16", "model.inner=16", "epochs=1", "dataset.vocabulary=9")
    trained = invoke(*settings, "dataset.longest=9", "data_root=.", "run_dir=run")
    assert trained.returncode == 0, trained.stderr
    beam.measure(tmp_path / "run", tmp_path / "multi30k", batch_size=2, parts=2, rounds=3, out=tmp_path)
    figures = read_json(tmp_path / "beam.json")
    assert figures["same"] == figures["settings"]["sentences"] == 2
    assert {size: len(seconds) for size, seconds in figures["seconds"].items()} == {"1": 3, "2": 3}
    assert "2 of 2 translations are the same" in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", ALL, ids=lambda module: module.__name__.rpartition(".")[2])
def test_words_that_a_benchmark_does_not_know_get_its_usage_and_code_2(benchmark: ModuleType, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as exit:
        benchmark.main(["--nonsense"])
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: python -m {benchmark.__name__} ")


@pytest.mark.parametrize(
    ("benchmark", "words", "complaint"),
    [
        (lstm, ["--rounds", "0"], "--rounds: 0 is not a whole number of at least 1"),
        (step, ["--rounds", "many"], "--rounds: many is not a whole number"),
        (compression, ["more"], "unrecognized arguments: more"),
        (loader, [], "the following arguments are required: DIR"),
        (loader, ["nowhere"], "there is no folder nowhere"),
        (beam, ["nowhere"], "the following arguments are required: FOLDER"),
        (beam, ["nowhere", "nowhere"], "there is no run in nowhere"),
        (lab, ["--hosts", "1"], "--hosts: 1: must be numbers between 2 and 250"),
        (lab, ["--hosts", "two"], "--hosts: two: must be numbers"),
        (lab, ["--caps", "100mbit,fast"], "--cap fast is not a rate"),
        (lab, ["--methods", "vanilla,adam"], "adam is none of vanilla, pufferfish, powersgd"),
        (lab, ["--steps", "1"], "--steps: 1 is not a whole number of at least 2"),
    ],
)
def test_wrong_words_are_named_with_the_usage(
    benchmark: ModuleType,
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit, spoken_errors():
        benchmark.main(words)
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert said.startswith("usage: ")
    assert complaint in said
    assert list(tmp_path.iterdir()) == []


def test_make_bench_starts_each_benchmark_with_words_that_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started = []
    for benchmark in ALL:
        monkeypatch.setattr(benchmark, "measure", lambda *_, **given: started.append(given), raising=False)
    (tmp_path / "imagenet_sample" / "train").mkdir(parents=True)
    recipe = re.findall(r"-m (pufferfish_bench\.bench\.\w+)(.*)", target("bench"))
    for module, words in recipe:
        sys.modules[module].main(words.replace("$${PUFFERFISH_DATA:-data}", str(tmp_path)).replace('"', "").split())
    assert len(recipe) == len(started) == 4
    assert all(given["out"] == Path("results/bench") for given in started)


def target(name: str) -> str:
    """What the Makefile does to make it."""
    makefile = (REPOSITORY / "Makefile").read_text()
    return re.search(rf"^{name}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]


def test_a_benchmark_is_a_command(tmp_path: Path):
    words = [sys.executable, "-m", "pufferfish_bench.bench.loader", "nowhere"]
    refused = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("usage: python -m pufferfish_bench.bench.loader ")
    assert "there is no folder nowhere" in refused.stderr
