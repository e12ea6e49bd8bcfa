"""How speed is compared: contenders take turns, a ratio is that of neighbours, and what is done is not done again."""

from pathlib import Path

import pytest

from pufferfish_bench.bench import interleaved, lab
from tests.reported import write_record


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
