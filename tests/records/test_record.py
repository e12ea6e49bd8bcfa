"""The one Record class: what a run wrote is what the reports read."""

from pathlib import Path

import pytest
from torch import nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method, Phase, Reducer, Task
from pufferfish_bench.records import reader
from pufferfish_bench.records.record import Record, higher_is_better, step_seconds, step_sections
from pufferfish_bench.reducers.ddp import DDP, DDPHalfPrecision, DDPPowerSGD
from pufferfish_bench.tasks.images import task as images
from pufferfish_bench.tasks.text import task as text
from pufferfish_bench.tasks.translation import task as translation
from tests.support.records import write_record
from tests.support.training import train


def recorded(folder: Path, method: Method) -> Record:
    """The record of a small run, which has no settings."""
    train(folder, method)
    return Record(folder, reader.read_run(folder, needs=()), reader.read_rows(folder))


class Overlapping(Reducer):
    overlaps = True


class TwoReducers(Method):
    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        return [Phase("first", range(1), reducer=Overlapping), Phase("second", range(1, epochs))]


def test_a_record_says_of_each_phase_whether_its_reducer_overlaps_communication(tmp_path: Path):
    record = recorded(tmp_path, TwoReducers())
    assert [record.overlaps(phase) for phase in ("first", "second", None)] == [True, False, False]
    assert all(reducer.overlaps for reducer in (DDP, DDPHalfPrecision, DDPPowerSGD))


def test_a_record_that_does_not_say_so_did_not_overlap(tmp_path: Path):
    assert not Record.read(write_record(tmp_path / "run")).overlaps()


def test_a_run_records_which_way_its_metric_improves(tmp_path: Path):
    assert recorded(tmp_path, Method()).summary["higher_is_better"] is True


def test_what_a_record_says_is_taken_before_what_the_name_of_its_metric_suggests(tmp_path: Path):
    record = Record.read(write_record(tmp_path / "run", metric="test_accuracy", figures={"higher_is_better": False}))
    assert record.higher_is_better is False


def test_the_name_of_every_tasks_metric_says_which_way_it_improves():
    modules = {module.__name__ for module in (images, text, translation)}
    tasks = [task for task in Task.__subclasses__() if task.__module__ in modules]
    assert len(tasks) == len(modules)
    assert all(higher_is_better(task.metric) == task.higher_is_better for task in tasks)


def test_the_metric_of_an_unfinished_run_is_found_in_its_epochs():
    rows = [{"phase": "train", "epoch": 0, "val_ppl": 9.0}]
    unfinished = Record(Path("run"), {"settings": {}}, rows)
    assert (unfinished.metric, unfinished.higher_is_better) == ("val_ppl", False)
    with pytest.raises(InputError, match="not finished"):
        _ = Record(Path("run"), {"settings": {}}, [{"phase": "train", "epoch": 0}]).metric


def test_the_summary_the_sections_and_the_epoch_have_one_mean_step(tmp_path: Path):
    record = recorded(tmp_path, Method())
    sections, step = step_sections(record.rows), step_seconds(record.rows)
    assert sum(sections.values()) == pytest.approx(step)
    assert record.summary["step"] == {name: seconds for name, seconds in sections.items() if seconds}
    assert record.summary["seconds_per_epoch"] == pytest.approx(record.epoch_seconds(*sections))


def test_total_time_is_all_epochs_and_the_surgery_between_them(tmp_path: Path):
    record = Record.read(write_record(tmp_path / "run", values=(1.0, 2.0), seconds=60.0, surgery=30.0))
    assert record.total_seconds == 150.0
    assert record.minutes == [1.0, 2.5]
