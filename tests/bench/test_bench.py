"""How speed is compared: contenders take turns and a ratio is that of one round. Every benchmark runs at toy size."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pufferfish_bench.bench import beam, compression, interleaved, loader, lstm, step
from pufferfish_bench.cli import bench as command
from pufferfish_bench.config.restore import restored_model
from pufferfish_bench.records.files import RUN, read_json
from tests.support.commands import Command
from tests.support.multi30k import SMALL
from tests.support.pictures import photograph
from tests.support.repository import REPOSITORY

ALL = (beam, compression, loader, lstm, step)


def test_contenders_take_turns_and_the_first_round_is_not_counted():
    order = []
    taken = interleaved.seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_rounds_so_one_disturbed_round_does_not_matter():
    assert interleaved.ratio([2.0, 4.0, 90.0], [1.0, 2.0, 3.0]) == 2.0
    assert interleaved.ratio([1.0, 1.0], [4.0, 4.0]) == pytest.approx(0.25)


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
    settings = (
        "model=transformer",
        "profile=cpu",
        "model.net.width=16",
        "model.net.inner=16",
        "epochs=1",
        "dataset.vocabulary=9",
    )
    trained = invoke(*settings, "dataset.longest=9", "data_root=.", "run_dir=run")
    assert trained.returncode == 0, trained.stderr
    record = read_json(tmp_path / "run" / RUN)
    model = restored_model(tmp_path / "run", record)
    given = {"model": model, "settings": record["settings"], "folder": tmp_path / "multi30k"}
    beam.measure(**given, batch_size=2, parts=2, rounds=3, out=tmp_path)
    figures = read_json(tmp_path / "beam.json")
    assert figures["same"] == figures["settings"]["sentences"] == 2
    assert {size: len(seconds) for size, seconds in figures["seconds"].items()} == {"1": 3, "2": 3}
    assert "2 of 2 translations are the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the following arguments are required: BENCHMARK"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["lstm", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["lstm", "--rounds", "0"], "--rounds: must be a whole number of at least 1, got 0"),
        (["step", "--rounds", "many"], "--rounds: must be a whole number of at least 1, got many"),
        (["compression", "more"], "unrecognized arguments: more"),
        (["loader"], "the following arguments are required: DIR"),
        (["loader", "nowhere"], "there is no folder nowhere"),
        (["beam", "nowhere"], "there is no run in nowhere"),
        (["beam", "nowhere", "nowhere"], "there is no run in nowhere"),
    ],
)
def test_wrong_arguments_get_the_usage_and_code_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        command.main(words)
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert said.startswith("usage: python -m pufferfish_bench.cli.bench ")
    assert complaint in said
    assert list(tmp_path.iterdir()) == []


def test_make_bench_starts_each_benchmark_with_arguments_that_it_accepts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started = []
    for benchmark in ALL:
        monkeypatch.setattr(benchmark, "measure", lambda *_, **given: started.append(given))
    (tmp_path / "imagenet_sample" / "train").mkdir(parents=True)
    recipe = re.findall(r"-m pufferfish_bench\.cli\.bench (.*)", target("bench"))
    for words in recipe:
        command.main(words.replace("$${PUFFERFISH_DATA:-data}", str(tmp_path)).replace('"', "").split())
    assert len(recipe) == len(started) == 4
    assert all(given["out"] == Path("results/bench") for given in started)


def target(name: str) -> str:
    """The recipe of a target in the Makefile."""
    makefile = (REPOSITORY / "Makefile").read_text()
    return re.search(rf"^{name}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]


def test_help_comes_without_torch_and_names_every_benchmark(tmp_path: Path):
    program = "import atexit, sys; from pufferfish_bench.cli.bench import main\n"
    program += "atexit.register(lambda: print('torch' in sys.modules)); main()"
    shown = subprocess.run([sys.executable, "-c", program, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert {benchmark.__name__.rpartition(".")[2] for benchmark in ALL} <= set(shown.stdout.split())
    assert shown.stdout.endswith("\nFalse\n")
