"""Learning rates as pure functions of the clock: nothing to build, to step or to restore."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The moment in training: all that a learning rate may depend on."""

    epoch: int
    step: int
    steps: int  # in this epoch
    phase_start: int  # the epoch in which the present phase began


def steps(clock: Clock, *, learning_rate: float, milestones: Sequence[float], factor: float) -> float:
    """A constant rate, multiplied by `factor` at each milestone that has been reached: an epoch, or a place within one."""
    now = clock.epoch + clock.step / clock.steps
    return learning_rate * factor ** sum(now >= milestone for milestone in milestones)
