"""Ranks whose weights differ at the end of training: the run is kept, and its record says so."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Method
from pufferfish_bench.distributed.simulated import SimulatedWorld
from pufferfish_bench.records import reader
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.summary import closing
from tests.support.nets import tiny_task
from tests.support.training import train


class Drifting(SimulatedWorld):
    """Rank 0 of three; from the n-th comparison of the weights on, those of the last two are others."""

    def __init__(self, differ_from: int):
        super().__init__(size=3, device=torch.device("cpu"))
        self.comparisons, self.differ_from = 0, differ_from

    def gather(self, thing: Any) -> list[Any]:
        if not isinstance(thing, str):
            return super().gather(thing)
        self.comparisons += 1
        return [thing, *["other"] * 2] if self.comparisons >= self.differ_from else [thing] * 3


def go(folder: Path, differ_from: int) -> Any:
    world = Drifting(differ_from)
    return train(folder, Method(), world=world, task=tiny_task(world=world), epochs=1)


def last_words(folder: Path) -> str:
    return closing(Record(folder, reader.read_run(folder, needs=()), reader.read_rows(folder)))


def test_a_finished_run_is_kept_with_a_warning_and_a_field_in_its_record(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    sentence = "at the end, ranks 1, 2 had other weights than rank 0"
    with caplog.at_level(logging.WARNING):
        go(tmp_path, differ_from=2)
    assert sentence in caplog.text
    run = reader.read_run(tmp_path, needs=("finished", "summary.metric"))
    assert run["unequal_ranks"] == [1, 2]
    assert sentence in last_words(tmp_path)


def test_equal_ranks_leave_no_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    go(tmp_path, differ_from=3)
    assert "unequal_ranks" not in reader.read_run(tmp_path, needs=())
    assert "other weights" not in caplog.text + last_words(tmp_path)


def test_ranks_that_start_with_different_weights_are_still_refused(tmp_path: Path):
    with pytest.raises(InputError, match="the weights of rank 1, 2 are not those of rank 0 after the model was built"):
        go(tmp_path, differ_from=1)
