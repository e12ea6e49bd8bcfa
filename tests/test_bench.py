"""How speed is compared: contenders take turns and a ratio is that of neighbours."""

import pytest

from pufferfish_bench.bench import interleaved


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order = []
    taken = interleaved.seconds({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_rounds_whatever_one_disturbed_round_says():
    assert interleaved.ratio([2.0, 4.0, 90.0], [1.0, 2.0, 3.0]) == 2.0
    assert interleaved.ratio([1.0, 1.0], [4.0, 4.0]) == pytest.approx(0.25)
