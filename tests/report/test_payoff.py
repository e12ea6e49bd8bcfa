"""Whether one run pays against another: ratios in words that fit their direction, and one sentence."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import payoff
from pufferfish_bench.report.payoff import COUNT, TIME, Saving
from tests.support.records import write_record

OPPOSITE = {"fewer": "more", "more": "fewer", "as many": "as many"}
BASE = {"bytes_per_step": 0, "higher_is_better": True}


def record(folder: Path, **changes: object) -> Record:
    figures = {**BASE, **changes.pop("figures", {})}
    return Record.read(write_record(folder, figures=figures, **changes))


def shown(first: Record, second: Record) -> str:
    out = io.StringIO()
    payoff.show(first, second, Console(file=out, width=200))
    return out.getvalue()


def test_each_quantity_is_shown_for_both_runs_with_its_ratio(tmp_path: Path):
    first = record(tmp_path / "vanilla", values=(50.0, 60.0), seconds=4.0)
    second = record(tmp_path / "small", values=(50.0, 59.0), seconds=2.0, figures={"parameters": 250, "macs": 4000})
    rows = {line.split("  ")[0].strip(): line.split() for line in shown(first, second).splitlines() if line.strip()}
    assert rows["parameters"][-4:] == ["1,000", "250", "4.00x", "fewer"]
    assert rows["MACs"][-4:] == ["2,000", "4,000", "2.00x", "more"]
    assert rows["gradients, bytes a step"][-4:] == ["4,000", "1,000", "4.00x", "fewer"]
    assert rows["seconds an epoch, last phase"][-4:] == ["4.00", "2.00", "2.00x", "faster"]
    assert rows["seconds in all"][-4:] == ["8.0", "4.0", "2.00x", "faster"]
    assert rows["test accuracy, %"][-3:] == ["60.00", "59.00", "-1.00"]
    assert payoff.sentence(first, second) == (
        "small against vanilla: 4.00x fewer parameters, epochs 2.00x faster, the whole run 2.00x faster, and its test accuracy "
        "is 1.00 points worse."
    )


def test_the_time_of_the_factorisation_counts(tmp_path: Path):
    first = record(tmp_path / "vanilla", seconds=4.0)
    second = record(tmp_path / "small", seconds=2.0, surgery=12.0)
    assert "the whole run 2.00x slower" in payoff.sentence(first, second)


def test_bytes_of_several_workers_are_those_that_were_sent(tmp_path: Path):
    first = record(tmp_path / "vanilla", figures={"bytes_per_step": 900})
    second = record(tmp_path / "small", figures={"bytes_per_step": 300})
    assert next(row for row in payoff.savings(first, second) if "bytes" in row.name).text == "3.00x fewer"


def test_frozen_parameters_send_no_gradients(tmp_path: Path):
    assert payoff.gradient_bytes(record(tmp_path / "head", figures={"trainable_parameters": 10})) == 40


def test_a_lower_perplexity_is_better(tmp_path: Path):
    first, second = (
        record(tmp_path / name, metric="val_ppl", values=(90.0, value), figures={"higher_is_better": False})
        for name, value in (("vanilla", 80.0), ("small", 75.0))
    )
    assert payoff.gain(first, second) == 5.0
    assert payoff.sentence(first, second).endswith("val perplexity is 5.00 better.")


@given(st.floats(0.01, 1e9), st.floats(0.01, 1e9))
def test_swapping_the_runs_gives_the_opposite_word_and_the_same_number(first: float, second: float):
    there = Saving("parameters", first, second, str, COUNT).text
    back = Saving("parameters", second, first, str, COUNT).text
    *number, word = there.split(maxsplit=1) if "x " in there else [there]
    *other_number, other_word = back.split(maxsplit=1) if "x " in back else [back]
    assert OPPOSITE[word] == other_word
    assert number == other_number


def test_equal_numbers_are_called_equal():
    assert Saving("seconds", 3.80, 3.79, str, TIME).text == "as fast"
    assert Saving("seconds", 3.80, 3.70, str, TIME).text == "1.03x faster"


def test_runs_of_other_tasks_and_unfinished_runs_are_refused(tmp_path: Path):
    vision = record(tmp_path / "vision")
    text = record(tmp_path / "text", metric="val_ppl", figures={"higher_is_better": False})
    with pytest.raises(InputError, match="give two runs of the same task"):
        shown(vision, text)
    running = write_record(tmp_path / "running", figures=BASE)
    unfinished = json.loads((running / "run.json").read_text())
    del unfinished["summary"]
    (running / "run.json").write_text(json.dumps(unfinished))
    with pytest.raises(InputError, match=r"running is not finished: run its command again"):
        shown(vision, Record.read(running))
