"""Output on a terminal or into a pipe: tables that fit, regular progress lines, exit codes."""

import configparser
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.report import describe, tables
from pufferfish_bench.report.output import Cell, Sheet
from pufferfish_bench.training.pace import SlowRun
from pufferfish_bench.training.terminal import Terminal
from tests.support.commands import SMALL
from tests.support.records import ablation, write_record, write_run
from tests.support.repository import REPOSITORY
from tests.support.training import EPOCHS_TRAINED, STEPS, train


def entry_points() -> dict[str, str]:
    """The commands of the package, each with the words that import and call it."""
    parsed = configparser.ConfigParser()
    parsed.read(REPOSITORY / "setup.cfg")
    lines = parsed["options.entry_points"]["console_scripts"].split("\n")
    found = dict(line.split(" = ") for line in lines if line)
    return {name: "from {} import {} as run".format(*place.split(":")) for name, place in found.items()}


COMMANDS = entry_points()


def command(name: str, *words: str, after: str = "") -> list[str]:
    """A command in a process of its own, whether or not its script is installed."""
    program = f"import sys\nsys.argv[0] = {name!r}\n{COMMANDS[name]}\ntry:\n    run()\nfinally:\n    {after or 'pass'}"
    return [sys.executable, "-c", program, *words]


def records(folder: Path) -> dict[str, list[str]]:
    """Arguments with which each command prints something."""
    runs = [str(write_record(folder / name, figures={"best_test_accuracy": 60.0})) for name in ("one", "two")]
    measured = [f"{name}={write_run(folder / name)}" for name in ("vanilla", "pufferfish")]
    return {
        "pufferfish": ["compare", *runs],
        "pufferfish-run": [*SMALL, "epochs=1", f"run_dir={folder / 'run'}"],
        "pufferfish-describe": ["model=resnet18"],
        "pufferfish-advise": ["profile=smoke", "model.net.width=0.05", "batch_size=4", "quick=true", "ratios=[0.5]"],
        "pufferfish-translate": ["--help"],
        "pufferfish-export": ["--help"],
        "pufferfish-compare": runs,
        "pufferfish-whatif": measured,
        "pufferfish-report": ["table8", "--results", str(ablation(folder / "results"))],
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_the_version_without_torch(name: str, tmp_path: Path):
    words = command(name, "--version", after="assert 'torch' not in sys.modules")
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "pufferfish-bench 0.2.0\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("asks_for_help", [False, True])
def test_a_closed_pipe_ends_every_command_with_the_code_of_a_broken_pipe(name: str, asks_for_help: bool, tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)
    words = ["--help"] if asks_for_help else records(tmp_path)[name]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # argparse ignores its own errors
    ended = subprocess.run(
        command(name, *words), cwd=tmp_path, env=buffered, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_the_tables_of_every_command_fit_and_truncate_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def printed(name: str, words: list[str], columns: int) -> str:
        """What a command prints in a terminal of this width."""
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", [name, *words])
        capsys.readouterr()
        exec(COMMANDS[name] + "\nrun()", {})
        return capsys.readouterr().out

    given_words = records(tmp_path)
    for name, further in {
        "pufferfish-describe": [["model=resnet50"], ["model=transformer"]],
        "pufferfish-compare": [[]],
        "pufferfish-whatif": [[]],
        "pufferfish-report": [[]],
    }.items():
        for changed in further:
            wide = printed(name, changed or given_words[name], 500)
            assert "Left out" not in wide
            for width in (80, 60):
                narrow = printed(name, changed or given_words[name], width)
                assert max(len(line) for block in blocks(narrow) for line in block) <= width
                assert numbers(narrow) <= numbers(wide) | {str(width), "200"}


def blocks(text: str) -> list[list[str]]:
    """The tables in what was printed: the rule below each heading and what follows up to an empty or a long line."""
    found = []
    for part in re.split(r"\n(?=\s*─+)", text)[1:]:
        lines = part.split("\n")
        found.append([line.rstrip() for line in lines[: next((n for n, line in enumerate(lines) if "." in line[-1:]), None)]])
    return found


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.,])\d[\d.,]*\d(?![\w])", text))


cells = st.text("0123456789.", min_size=1, max_size=12)


@given(st.lists(st.tuples(*[cells] * 6), min_size=1, max_size=4), st.integers(30, 120), st.sets(st.sampled_from("bcdef")))
def test_a_narrow_table_keeps_whole_columns_and_names_the_others(rows: list[tuple], width: int, dispensable: set[str]):
    console = Console(file=io.StringIO(), width=width)
    numbers = [[f"row {number}", *(Cell(text, 0.0) for text in row[1:])] for number, row in enumerate(rows)]
    sheet = Sheet("", "abcdef", numbers, dispensable=sorted(dispensable))
    sheet.show(console)
    printed = console.file.getvalue()
    left_out = re.search(r"Left out to fit \d+ columns: (.*?)\. Set COLUMNS", " ".join(printed.split()))
    gone = left_out[1].split(", ") if left_out else []
    assert all(len(line) <= width for line in printed.split("\n"))
    kept = [place for place, name in enumerate("abcdef") if name not in gone]
    shown = printed.split("Left out")[0].split("─\n")[-1] if "─\n" in printed else printed
    for row in sheet.rows:
        assert all(word in shown for place in kept for word in row[place].text.split())
    if gone and set(gone) != set(dispensable) and len(gone) < len(dispensable):
        assert set(gone) <= dispensable  # those go first


def test_a_table_that_fits_is_printed_as_it_is():
    console = Console(file=io.StringIO(), width=80)
    table = tables.table("run", "seconds per epoch")
    table.add_row("one", "1.5")
    tables.show(table, console)
    assert "seconds per epoch" in console.file.getvalue()


GROUPED = {
    "stem": "the first weight layer", "head": "the last weight layer", "": "Net holds scale itself",
    "b.0": "grouped convolution (groups=4)", "b.1": "grouped convolution (groups=8)",
    "c.0": "already low-rank", "c.1": "already low-rank", "b.2": "grouped convolution (groups=16)",
    "d": "too thin to gain: 9 weights at rank 1 instead of 8",
    "e.0": "its weight is unused: who knows", "e.1": "its weight is unused: who knows",
}  # fmt: skip
LINES = [
    "not factorised: stem: the first weight layer",
    "not factorised: head: the last weight layer",
    "not factorised: the model itself: Net holds scale itself",
    "not factorised: 3 layers: grouped convolution: b.0, b.1, b.2",
    "not factorised: 2 layers: already low-rank: c.0, c.1",
    "not factorised: d: too thin to gain: 9 weights at rank 1 instead of 8",
    "not factorised: 2 layers: its weight is unused: who knows: e.0, e.1",
]


def test_layers_that_stay_dense_for_the_same_reason_share_a_line_in_a_run_and_in_both_descriptions(tmp_path: Path):
    class Leaving(Surgery):
        def operate(self, run: Run) -> Operation:
            return Operation({"layers": {}, "left": GROUPED})

    class Leaves(Method):
        def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
            return [Phase("all", range(epochs), surgery=Leaving())]

    printed = io.StringIO()
    train(tmp_path, Leaves(), observers=[Terminal(console=Console(file=printed, width=500))])
    assert [line.strip() for line in printed.getvalue().splitlines() if "not factorised" in line] == LINES
    shown = io.StringIO()
    operation = {"phase": "all", "epoch": 0, "left": GROUPED}
    describe.show_record({"settings": {"name": "a", "method": {}}, "operations": [operation]}, Console(file=shown, width=500))
    assert [line for line in shown.getvalue().splitlines() if "not factorised" in line] == LINES
    shown = io.StringIO()
    description = {"model": "net", "layers": [], "left": GROUPED, "totals": {}, "also_counted": [], "note": ""}
    describe.show(description, Console(file=shown, width=500))
    assert [line for line in shown.getvalue().splitlines() if "not factorised" in line] == LINES


def lines_of(tmp_path: Path, interval: float) -> list[str]:
    said = io.StringIO()
    train(tmp_path / "run", Method(), observers=[Terminal(console=Console(file=said, width=200), interval=interval)])
    return [line for line in said.getvalue().splitlines() if line.startswith("epoch")]


def test_without_a_terminal_there_is_a_line_at_every_interval_in_training_and_in_tests(tmp_path: Path):
    lines = lines_of(tmp_path, interval=0)
    assert sum(bool(re.search(rf"step \d/{STEPS}$", line)) for line in lines) == EPOCHS_TRAINED * STEPS
    assert sum(line.endswith("testing") for line in lines) == EPOCHS_TRAINED * 4  # 20 images in batches of 6


class Slow(Method):
    """One step takes long."""

    def after_step(self, run: Run) -> None:
        if run.epoch == 1 and run.step == 2:
            time.sleep(1.5)


def test_a_step_that_takes_longer_than_the_interval_is_not_silent(tmp_path: Path):
    said = io.StringIO()
    terminal = Terminal(console=Console(file=said, width=200), interval=0.5)
    train(tmp_path / "run", Slow(), observers=[terminal])
    assert f"still epoch 2/{EPOCHS_TRAINED}: in step 3/{STEPS}\n" in said.getvalue()
    assert not terminal.watcher.is_alive()


def test_lines_come_no_more_often_than_the_interval(tmp_path: Path):
    assert len(lines_of(tmp_path, interval=3600)) == EPOCHS_TRAINED


@pytest.mark.parametrize(("pace", "told"), [(140.0, True), (0.1, False)])
def test_a_run_that_takes_hours_is_told_once_with_what_to_do_instead(tmp_path: Path, pace: float, told: bool):
    ticks = iter(range(10**6))
    said: list[str] = []
    train(tmp_path / "run", Method(), observers=[SlowRun(say=said.append, profile="paper", clock=lambda: pace * next(ticks))])
    assert len(said) == told
    if told:
        assert "takes about 63 minutes" in said[0]  # of 28 steps one is done
        assert "profile=cpu" in said[0]
        assert "profile=smoke" in said[0]


def test_the_estimate_is_the_steps_that_are_left_times_the_pace_after_the_first_step(tmp_path: Path):
    moments = iter([0.0, 10.0, 11.0, 12.0, 13.0])  # the first step warms up; after the fourth nobody looks at the clock
    said: list[str] = []
    slow = SlowRun(say=said.append, profile="cpu", long=0, clock=lambda: next(moments))
    train(tmp_path / "run", Method(), observers=[slow])
    assert f"about {EPOCHS_TRAINED * STEPS - 4} seconds" in said[0]
    assert "profile=cpu" not in said[0]


def test_a_bare_run_on_a_cpu_says_how_long_it_takes_and_goes_on(arguments: Callable[..., list[str]], tmp_path: Path):
    words = arguments(
        "dataset=synthetic_images", "model.net.width=0.05", "dataset.train_images=400", "epochs=999999", "run_dir=run"
    )
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = iter(process.stdout.readline, "")
        assert any("at this pace the run takes" in line and "profile=cpu" in line for line in said)
        assert any(line.startswith("epoch ") for line in said)  # it trains on
        process.terminate()
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
