"""Runs side by side: the settings in which they differ are shown, and speed has one meaning."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pufferfish_bench.cli import compare
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import compare_charts, describe
from tests.support.records import write_record

BASE: dict[str, Any] = {
    "name": "net-data-vanilla-cpu-seed1",
    "seed": 1,
    "epochs": 2,
    "dataset": {"_target_": "data.Pictures", "seed": 1, "sample": [1]},
    "method": {"_target_": "core.Method"},
    "schedule": {"_target_": "schedules.steps", "learning_rate": 0.1, "milestones": [2, 3]},
}


def settings(**changes: Any) -> dict[str, Any]:
    seed = changes.get("seed", 1)
    own = {"name": f"net-data-vanilla-cpu-seed{seed}", "dataset": BASE["dataset"] | {"seed": seed}}
    return BASE | own | changes


def rate(value: float) -> dict[str, Any]:
    return BASE["schedule"] | {"learning_rate": value}


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """What the command prints for runs with these settings and other entries of their records."""

    def show(*runs: dict[str, Any], width: int = 200) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        folders = [
            write_record(tmp_path / f"run{number}", **{"figures": {"best_test_accuracy": 60.0}} | run)
            for number, run in enumerate(runs)
        ]
        compare.main([str(folder) for folder in folders])
        return capsys.readouterr().out

    return show


def cells(printed: str, column: str) -> list[str]:
    """The cells below a heading."""
    lines = printed.split("\n")
    rule = next(number for number, line in enumerate(lines) if "──" in line)
    heading = re.search(rf"(?<!\S){re.escape(column)}(?!\S)", lines[rule - 1])
    assert heading, f"no {column} in {lines[rule - 1]}"
    rows = lines[rule + 1 : next(number for number, line in enumerate(lines) if number > rule and not line.strip())]
    left, right = heading.start(), heading.end()
    return [next((m[0] for m in re.finditer(r"\S+", row) if m.start() < right and m.end() > left), "") for row in rows]


def test_settings_that_differ_are_columns_and_others_are_not(shown: Callable[..., str]):
    printed = shown(
        {"settings": settings()},
        {"settings": settings(schedule=rate(0.2))},
        {"settings": settings(seed=2, schedule=rate(0.2))},
    )
    assert cells(printed, "seed") == ["1", "1", "2"]
    assert cells(printed, "schedule.learning_rate") == ["0.1", "0.2", "0.2"]
    for same in ("milestones", "dataset.seed", "name", "sample", "method", "epochs"):
        assert same not in printed.split("──")[0]
    assert len(set(cells(printed, "run"))) == 3


def test_different_targets_are_shown_by_name_and_not_by_the_settings_that_only_one_has(shown: Callable[..., str]):
    warm = {"_target_": "methods.Pufferfish", "warmup_epochs": 3, "trigger": {"epoch": 3}}
    adam = {"_target_": "torch.optim.Adam", "betas": [0.9, 0.98]}
    printed = shown(
        {"settings": settings(optimizer={"_target_": "optimizers.sgd", "momentum": 0.9})},
        {"settings": settings(optimizer=adam, method=warm, name="net-data-pufferfish-cpu-seed1")},
    )
    assert cells(printed, "optimizer") == ["sgd", "Adam"]
    assert cells(printed, "run") == ["vanilla", "pufferfish"]  # the name says the method
    for own in ("momentum", "betas", "warmup_epochs", "trigger", "Pufferfish"):
        assert own not in printed.split("files:")[0]


def test_a_speed_is_the_time_of_the_first_run_divided_by_that_of_this_one(shown: Callable[..., str]):
    runs = [{"settings": settings(seed=seed), "seconds": seconds} for seed, seconds in ((1, 3.0), (2, 1.5), (3, 6.0))]
    printed = shown(*runs)
    assert cells(printed, "times as fast") == ["1.00x", "2.00x", "0.50x"]
    assert "the total time of the first run divided by that of this one" in printed
    assert "*" not in printed


def test_runs_of_another_length_than_the_first_are_marked(shown: Callable[..., str]):
    printed = shown(
        {"settings": settings()},
        {"settings": settings(epochs=3), "values": (1.0, 2.0, 3.0)},
        {"settings": settings(seed=2)},
    )
    assert cells(printed, "epochs") == ["2", "3", "2"]
    assert cells(printed, "times as fast") == ["1.00x", "0.67x*", "1.00x"]
    assert "* This run has another number of epochs than that run." in printed


def test_a_narrow_table_shows_the_settings_that_differ(shown: Callable[..., str]):
    printed = shown({"settings": settings()}, {"settings": settings(schedule=rate(0.2), seed=2)}, width=80)
    assert all(len(line) <= 80 for line in printed.split("times as fast:")[0].split("\n"))
    assert "Left out to fit 80 columns" in printed
    for word in ("schedule.", "learning_rate", "0.2", "1.00x"):
        assert word in printed


def test_plain_files_are_ignored_unless_nothing_else_is_given(tmp_path: Path, capsys: pytest.CaptureFixture, refused: Callable):
    run, file = write_record(tmp_path / "run", settings=BASE, figures={"best_test_accuracy": 60.0}), tmp_path / "multirun.yaml"
    file.touch()
    compare.main([str(file), str(run)])
    assert capsys.readouterr().out.count("files: ") == 1
    refused(compare.main, [file], "is a file")


def test_the_record_of_a_surgery_without_layers_is_described(tmp_path: Path, capsys: pytest.CaptureFixture):
    folder = write_record(tmp_path / "run", surgery=1.0, settings={"name": "run", "method": {}})
    record = json.loads((folder / "run.json").read_text())
    record["operations"][0] = {"phase": "head", "epoch": 1, "seconds": 1.0, "note": "the body is frozen"}
    (folder / "run.json").write_text(json.dumps(record))
    describe.show_run(folder, Console())
    printed = capsys.readouterr().out
    assert "phase head, from epoch 2: 0 layers" in printed
    assert "the body is frozen" in printed


def unfinished(folder: Path, *, epochs: int, **record: Any) -> Path:
    """A run that was stopped; its record has the task."""
    write_record(folder, settings=settings(epochs=epochs, name="net-data-stopped-cpu-seed1"), **record)
    content = json.loads((folder / "run.json").read_text())
    del content["summary"], content["finished"]
    (folder / "run.json").write_text(json.dumps(content | {"task": {"metric": record["metric"], "higher_is_better": False}}))
    return folder


def marked(printed: str, column: str) -> list[bool]:
    """For each row, whether a star ends the cell of a right-aligned column."""
    lines = printed.split("\n")
    rule = next(number for number, line in enumerate(lines) if "──" in line)
    end = re.search(rf"(?<!\S){re.escape(column)}(?!\S)", lines[rule - 1]).end()
    return [line[end - 1] == "★" for line in lines[rule + 1 : rule + 1 + len(cells(printed, column))]]


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_value_is_marked_in_the_direction_that_the_record_says(shown: Callable[..., str], higher: bool):
    figures = {"higher_is_better": higher, "best_score": 1.0}
    values = {1: (31.0, 11.25), 2: (32.0, 12.25), 3: (33.0, 12.25)}
    printed = shown_with(shown, figures, values)
    assert marked(printed, "last") == ([False, True, True] if higher else [True, False, False])
    assert marked(printed, "parameters") == [False] * 3  # all are equal


def shown_with(shown: Callable[..., str], figures: dict[str, Any], values: dict[int, tuple[float, float]]) -> str:
    return shown(
        *({"settings": settings(seed=seed), "metric": "score", "values": own, "figures": figures} for seed, own in values.items())
    )


def test_without_arguments_the_runs_of_results_are_compared_by_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, refused: Callable
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    refused(compare.main, [], "there are no runs in results/runs; train one first")
    text = {"_target_": "data.Words", "seed": 1}
    figures = {"best_test_accuracy": 60.0}
    write_record(Path("results/runs/one"), settings=settings(), figures=figures)
    write_record(Path("results/runs/demo/two"), settings=settings(seed=2), figures=figures, seconds=1.0)
    write_record(Path("results/runs/text"), settings=settings(dataset=text), metric="val_ppl", figures={"best_val_ppl": 60.0})
    (tmp_path / "results/runs/damaged").mkdir()
    (tmp_path / "results/runs/damaged/run.json").write_text("{")
    compare.main([])
    printed = capsys.readouterr()
    assert "left out: results/runs/damaged/run.json cannot be read" in printed.err
    tables_of = {title: printed.out.split(f"{title}, ")[1] for title in ("Pictures", "Words")}
    assert sorted(re.findall("files: results/runs/(.*)", printed.out)) == ["demo/two", "one", "text"]
    assert marked(tables_of["Pictures"].split("Words")[0], "seconds per epoch").count(True) == 1
    compare.main(["--limit", "1"])
    printed = capsys.readouterr()
    assert printed.out.count("files: ") == 1
    assert "results/runs has 3 runs; the newest 1 are shown" in printed.err


def test_an_unfinished_run_is_shown_as_of_its_last_epoch_and_wins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setenv("COLUMNS", "220")
    stopped = unfinished(tmp_path / "stopped", epochs=9, metric="score", values=(7.0, 1.0, 2.0))
    figures = {"higher_is_better": False, "best_score": 3.0}
    others = [
        write_record(tmp_path / name, settings=settings(seed=seed), metric="score", values=(9.0, 3.0 + seed), figures=figures)
        for seed, name in ((1, "a"), (2, "b"))
    ]
    compare.main([str(folder) for folder in (*others, stopped)])
    printed = capsys.readouterr().out
    assert "not finished: 3 of 9 epochs" in printed
    assert cells(printed, "last") == ["4.00", "5.00", "2.00"]
    assert cells(printed, "best")[-1] == "1.00"
    assert marked(printed, "last") == [True, False, False]


def test_speeds_are_relative_to_the_first_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setenv("COLUMNS", "220")
    figures = {"best_score": 3.0}
    runs = [unfinished(tmp_path / "stopped", epochs=9, metric="score", values=(7.0, 1.0, 2.0))]
    for seed, seconds in ((1, 4.0), (2, 2.0)):
        own = {"settings": settings(seed=seed), "metric": "score", "figures": figures, "seconds": seconds}
        runs.append(write_record(tmp_path / f"run{seed}", **own))
    compare.main(list(map(str, runs)))
    printed = capsys.readouterr().out
    assert re.findall(r"\d\.\d\dx", printed) == ["1.00x", "2.00x"]
    assert "the first finished run, divided by that of this one" in " ".join(printed.split())


def test_the_curves_are_drawn_over_epochs_and_over_seconds(tmp_path: Path, capsys: pytest.CaptureFixture):
    runs = [
        write_record(
            tmp_path / name, settings=settings(seed=seed), seconds=3.0, surgery=5.0, figures={"best_test_accuracy": 60.0}
        )
        for seed, name in ((1, "a"), (2, "b"))
    ]
    compare.main([*map(str, runs), "--plot", "--out", str(tmp_path / "new" / "curves")])
    printed = capsys.readouterr().out
    for ending in ("png", "svg"):
        assert f"written: {tmp_path / 'new' / 'curves'}.{ending}" in printed.replace("\n", "")
    svg = (tmp_path / "new" / "curves.svg").read_text()
    for words in ("epoch", "seconds of training", "test accuracy, %"):
        assert f">{words}<" in svg
    figure = compare_charts.draw([(name, Record.read(folder)) for name, folder in zip("ab", runs, strict=True)])
    left, right = (axes.get_lines()[0] for axes in figure.axes)
    assert list(left.get_xdata()) == [1, 2]
    assert list(right.get_xdata()) == pytest.approx([3, 11])  # with the surgery before epoch 2
    assert list(right.get_ydata()) == [50, 60]
