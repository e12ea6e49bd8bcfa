"""Sections of a step add up to the step, with any clock."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.training import stopwatch
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


class Device:
    """A GPU with a clock of ours: an operation takes time on the device, and none on the host, which runs ahead."""

    def __init__(self) -> None:
        self.time = 0.0  # milliseconds, when all operations enqueued so far are done
        self.reached = 0.0  # how far the host has waited for the device

    def event(self, *, enable_timing: bool) -> "Event":
        assert enable_timing
        return Event(self)

    def run(self, milliseconds: float) -> None:
        self.time += milliseconds


class Event:
    """As torch.cuda.Event: its time can be read only when the host has waited for it."""

    def __init__(self, device: Device):
        self.device = device

    def record(self) -> None:
        self.at = self.device.time

    def synchronize(self) -> None:
        self.device.reached = max(self.device.reached, self.at)

    def elapsed_time(self, end: "Event") -> float:
        assert end.at <= self.device.reached, "the device has not reached this event"
        return end.at - self.at


def on_gpu(device: Device, untimed_steps: int = 0) -> Stopwatch:
    return Stopwatch(device=torch.device("cuda"), untimed_steps=untimed_steps, event=device.event)


TIMES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=4)


@given(st.lists(TIMES, max_size=6), st.integers(0, 3))
def test_on_a_gpu_sections_take_the_time_of_the_device_and_add_up_to_the_steps(steps: list, untimed: int):
    device = Device()
    watch = on_gpu(device, untimed)
    watch.phase_started()
    for sections in steps:
        with watch.step():
            device.run(3)
            for section, milliseconds in sections:
                with watch(section):
                    device.run(milliseconds)
    assert device.reached == 0  # no step waited for the device
    seconds, timed = watch.take()
    assert timed == max(0, len(steps) - untimed)
    assert sum(seconds.values()) == pytest.approx(device.time / 1000)
    assert seconds.get(OTHER, 0.0) == pytest.approx(0.003 * timed)
    for section in "abc":
        assert seconds.get(section, 0.0) == pytest.approx(
            sum(t for step in steps[untimed:] for s, t in step if s == section) / 1000
        )


def test_on_a_gpu_marks_are_folded_before_they_become_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopwatch, "FOLD_AT", 10)
    device = Device()
    watch, most = on_gpu(device), 0
    for _ in range(30):
        with watch.step(), watch("a"):
            device.run(1)
        most = max(most, len(watch.marks))
    assert most <= 10
    assert watch.take() == ({"a": pytest.approx(0.03), OTHER: pytest.approx(0.0)}, 30)


def test_on_a_gpu_intervals_are_reassigned_by_the_time_of_the_device():
    device = Device()
    watch = on_gpu(device)
    with watch.step():
        with watch("backward"):
            device.run(5)
            before = watch.mark()
            device.run(7)
        watch.reassign("communicate", [(before, None)])
    assert watch.take()[0] == {"backward": pytest.approx(0.005), "communicate": pytest.approx(0.007), OTHER: pytest.approx(0.0)}
