"""Learning rates as pure functions of the clock: nothing to build, to step or to restore."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The moment in training: all that a learning rate may depend on."""

    epoch: int
    step: int
    steps: int  # in this epoch
    phase_start: int  # the epoch in which the present phase began
    history: Sequence[float] = ()  # how bad each epoch before this one was: less is better


def steps(
    clock: Clock, *, learning_rate: float, milestones: Sequence[float], factor: float, ramp_epochs: float, ramp_from: float,
    ramp_again: bool,
) -> float:  # fmt: skip
    """A constant rate, multiplied by `factor` at each milestone that has been reached: an epoch, or a place within one.

    It is reached within `ramp_epochs` from `ramp_from` of it, on a straight line that is followed an epoch at a time, or a step
    at a time if the ramp is shorter than an epoch; with `ramp_again` in every phase.
    """
    now = clock.epoch + clock.step / clock.steps
    rate = learning_rate * factor ** sum(now >= milestone for milestone in milestones)
    ramped = (clock.epoch if ramp_epochs >= 1 else now) - (clock.phase_start if ramp_again else 0)
    return rate * (ramp_from + (1 - ramp_from) * ramped / ramp_epochs) if ramped < ramp_epochs else rate


def on_plateau(clock: Clock, *, learning_rate: float, factor: float, switch_factor: float) -> float:
    """A constant rate, multiplied by `factor` after each epoch that was no better than the best before it, and by
    `switch_factor` from the start of the present phase on, if it is not the first: once, however many came before."""
    rate, best = learning_rate, math.inf
    for epoch in range(clock.epoch + 1):
        if epoch == clock.phase_start > 0:
            rate *= switch_factor
        if epoch < clock.epoch:
            rate *= 1.0 if clock.history[epoch] < best else factor
            best = min(best, clock.history[epoch])
    return rate


def noam(clock: Clock, *, factor: float, width: int, warmup_steps: int, restart: bool) -> float:
    """The Transformer's: a linear rise over `warmup_steps`, then the inverse square root of the steps taken; `restart` counts
    them from the start of the phase."""
    taken = (clock.epoch - (clock.phase_start if restart else 0)) * clock.steps + clock.step + 1
    return factor * width**-0.5 * min(taken**-0.5, taken * warmup_steps**-1.5)
