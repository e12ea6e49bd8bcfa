"""How speed is compared: contenders take turns and a ratio is that of one round; the command line of the benchmark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pufferfish_bench.bench import beam, interleaved, suite, table
from pufferfish_bench.cli import bench as command
from pufferfish_bench.config.restore import restored_model
from pufferfish_bench.records.files import RUN, read_json
from tests.support.commands import Command
from tests.support.multi30k import SMALL
from tests.support.repository import REPOSITORY


def test_contenders_take_turns_and_the_first_round_is_not_counted():
    order = []
    taken = interleaved.seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_rounds_so_one_disturbed_round_does_not_matter():
    assert interleaved.ratio([2.0, 4.0, 90.0], [1.0, 2.0, 3.0]) == 2.0
    assert interleaved.ratio([1.0, 1.0], [4.0, 4.0]) == pytest.approx(0.25)


def test_work_that_a_contender_needs_before_its_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    clock, order = [0.0], []
    monkeypatch.setattr(interleaved.time, "perf_counter", lambda: clock[0])

    def work(name: str, seconds: float) -> None:
        order.append(name)
        clock[0] += seconds

    contenders = {"a": lambda: work("a", 1.0), "b": lambda: work("b", 2.0)}
    taken = interleaved.seconds(contenders, before={"b": lambda: work("before b", 10.0)}, rounds=1)
    assert order == ["a", "before b", "b"] * 2
    assert taken == {"a": [1.0], "b": [2.0]}


def test_without_warm_up_every_round_counts():
    order = []
    taken = interleaved.seconds({"a": lambda: order.append("a")}, rounds=2, warm_up=False)
    assert len(order) == len(taken["a"]) == 2


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
        (["nonsense"], "benchmark nonsense is not known; allowed: all, "),
        (["lstm", "--nonsense"], "option --nonsense is not known"),
        (["lstm", "--rounds", "0"], "--rounds: must be a whole number of at least 1, got 0"),
        (["nets", "--rounds", "many"], "--rounds: must be a whole number of at least 1, got many"),
        (["compression", "more"], "unrecognized arguments: more"),
        (["all", "--rounds", "2"], "option --rounds is not known"),
        (["table", "--quick"], "option --quick is not known"),
        (["beam", "nowhere"], "there is no run in nowhere"),
        (["beam", "nowhere", "nowhere"], "there is no run in nowhere"),
    ],
)
def test_wrong_arguments_get_one_sentence_and_code_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        command.main(words)
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert complaint in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "quick", "folder"), [("bench", False, "results/bench"), ("bench-quick", True, "results/runs/bench-quick")]
)
def test_make_starts_the_whole_benchmark_with_arguments_that_it_accepts(
    name: str, quick: bool, folder: str, monkeypatch: pytest.MonkeyPatch
):
    started = []
    monkeypatch.setattr(suite, "measure_all", lambda out, **given: started.append((out, given)) or [])
    monkeypatch.setattr(table, "render", lambda out, console: started.append(out))
    (words,) = re.findall(r"-m pufferfish_bench\.cli\.bench (.*)", target(name))
    command.main(words.split())
    assert started == [(Path(folder), {"quick": quick}), Path(folder)]


def test_git_ignores_the_results_of_a_quick_run():
    ignored = subprocess.run(["git", "check-ignore", "-q", f"{command.QUICK_OUT}/lstm.json"], cwd=REPOSITORY)
    kept = subprocess.run(["git", "check-ignore", "-q", f"{command.OUT}/lstm.json"], cwd=REPOSITORY)
    assert (ignored.returncode, kept.returncode) == (0, 1)


def test_subjects_are_measured_in_processes_of_their_own_and_one_that_fails_leaves_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    """The old file of a subject that fails must not pass for a new result. The loader has worker processes of its own."""
    monkeypatch.setenv("PUFFERFISH_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setitem(suite.SUBJECTS, "nonsense", "a subject without a module")
    (tmp_path / "nonsense.json").write_text("{}")
    assert suite.measure_all(tmp_path, quick=True, subjects=["nonsense", "loader"]) == ["nonsense"]
    assert [path.name for path in tmp_path.iterdir()] == ["loader.json"]
    output, errors = capfd.readouterr()
    assert "[2/2] loader: " in output
    assert "nonsense failed with exit code 1" in output
    assert "No module named 'pufferfish_bench.bench.nonsense'" in errors


def test_a_single_subject_renders_the_table_of_its_folder_again(tmp_path: Path, capsys: pytest.CaptureFixture):
    command.main(["startup", "--rounds", "1", "--out", str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == table.page(table.read(tmp_path))
    (tmp_path / "README.md").unlink()
    command.main(["table", "--out", str(tmp_path)])
    assert (tmp_path / "README.md").exists()
    assert capsys.readouterr().out.count("targets met") == 2


def test_a_failed_subject_gives_exit_code_1_after_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown = []
    monkeypatch.setattr(suite, "measure_all", lambda out, **given: ["lstm"])
    monkeypatch.setattr(table, "render", lambda out, console: shown.append(out))
    with pytest.raises(SystemExit) as exit:
        command.main(["all", "--out", str(tmp_path)])
    assert exit.value.code == 1
    assert shown == [tmp_path]


def target(name: str) -> str:
    """The recipe of a target in the Makefile."""
    makefile = (REPOSITORY / "Makefile").read_text()
    return re.search(rf"^{name}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]


def test_help_comes_without_torch_and_names_every_benchmark(tmp_path: Path):
    program = "import atexit, sys; from pufferfish_bench.cli.bench import main\n"
    program += "atexit.register(lambda: print('torch' in sys.modules)); main()"
    shown = subprocess.run([sys.executable, "-c", program, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert {"all", "table", "beam", *suite.SUBJECTS} <= set(shown.stdout.split())
    assert shown.stdout.endswith("\nFalse\n")
