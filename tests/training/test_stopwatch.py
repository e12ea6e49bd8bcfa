"""Sections of a step add up to the step, with any clock."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.training.stopwatch import FIRST_STEPS, OTHER, Stopwatch

CPU = torch.device("cpu")


def ticking() -> Stopwatch:
    """A stopwatch whose clock advances by one each time it is read."""
    return Stopwatch(device=CPU, untimed_steps=0, clock=map(float, itertools.count()).__next__)


def test_every_tick_of_a_step_belongs_to_one_section():
    watch = ticking()
    with watch.step():  # tick 0
        with watch("a"):  # ticks 1, 2
            pass
        with watch("b"):  # ticks 3, 4
            pass
        with watch("a"):  # ticks 5, 6
            pass
    assert watch.take() == ({"a": 2.0, "b": 1.0, OTHER: 4.0}, 1)  # tick 7 ends the step
    assert watch.take() == ({}, 0)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=8), st.integers(0, 4))
def test_sections_add_up_to_the_steps_and_the_first_steps_are_a_separate_section(steps: list[list[str]], untimed: int):
    watch = ticking()
    watch.untimed_steps = untimed
    watch.phase_started()
    for sections in steps:
        with watch.step():
            for section in sections:
                with watch(section):
                    pass
    seconds, timed = watch.take()
    durations = [2 * len(sections) + 1 for sections in steps]
    assert sum(seconds.values()) == sum(durations)
    assert seconds.get(FIRST_STEPS, 0) == sum(durations[:untimed])
    assert timed == max(0, len(steps) - untimed)


def test_sections_do_not_nest():
    watch = ticking()
    with pytest.raises(RuntimeError, match="do not nest"), watch("a"), watch("b"):
        pass


def test_measured_times_survive_a_stop():
    watch, later = ticking(), ticking()
    with watch.step(), watch("a"):
        pass
    later.load_state_dict(watch.state_dict())
    assert later.take() == watch.take()


def test_timing_does_not_advance_the_random_state():
    before = torch.get_rng_state()
    watch = ticking()
    with watch.step(), watch("a"):
        pass
    watch.take()
    assert torch.equal(torch.get_rng_state(), before)


def test_intervals_of_a_section_can_be_reassigned_and_the_sections_still_add_up():
    watch = Stopwatch(device=CPU, untimed_steps=0, clock=map(float, itertools.count()).__next__)
    with watch.step():  # 0
        with watch("backward"):  # 1
            first, second, third = watch.mark(), watch.mark(), watch.mark()  # 2, 3, 4
        watch.reassign("communicate", [(first, second), (third, None)])  # the section ended at 5
    seconds, _ = watch.take()
    assert seconds == {"backward": 2.0, "communicate": 2.0, "other": 2.0}
