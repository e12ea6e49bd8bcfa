"""Learning rates as pure functions of the clock: nothing to build, to step or to restore."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pufferfish_bench.base.ranges import Count, NonNegative, Positive, Share


@dataclass(frozen=True)
class Clock:
    """The moment in training: all that a learning rate may depend on."""

    epoch: int
    step: int
    steps: int  # in this epoch
    phase_start: int  # the epoch in which the present phase began
    history: Sequence[float] = ()  # the metric of each earlier epoch, negated if higher is better: lower is better


def steps(
    clock: Clock, *, learning_rate: NonNegative, milestones: Sequence[NonNegative], factor: NonNegative, ramp_epochs: NonNegative,
    ramp_from: Share, ramp_again: bool,
) -> float:  # fmt: skip
    """A constant rate, multiplied by `factor` at each milestone: an epoch, or a fraction of one.

    The rate rises linearly from `ramp_from` times its value within `ramp_epochs`: once per epoch, or at every step if the ramp is
    shorter than an epoch. With `ramp_again`, it does so in every phase.
    """
    now = clock.epoch + clock.step / clock.steps
    rate = learning_rate * factor ** sum(now >= milestone for milestone in milestones)
    ramped = (clock.epoch if ramp_epochs >= 1 else now) - (clock.phase_start if ramp_again else 0)
    return rate * (ramp_from + (1 - ramp_from) * ramped / ramp_epochs) if ramped < ramp_epochs else rate


def on_plateau(clock: Clock, *, learning_rate: NonNegative, factor: NonNegative, switch_factor: NonNegative) -> float:
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


def noam(clock: Clock, *, factor: NonNegative, width: Positive, warmup_steps: Count, restart: bool) -> float:
    """The Transformer's: a linear rise over `warmup_steps`, then the inverse square root of the steps taken; `restart` counts
    them from the start of the phase."""
    taken = (clock.epoch - (clock.phase_start if restart else 0)) * clock.steps + clock.step + 1
    return factor * width**-0.5 * min(taken**-0.5, taken * warmup_steps**-1.5)


def cosine(clock: Clock, *, learning_rate: NonNegative, epochs: Count, rise: Share) -> float:
    """A linear rise over the share `rise` of `epochs`, then half a cosine that reaches zero at their end."""
    done = progress(clock, epochs)
    return learning_rate * (done / rise if done < rise else (1 + math.cos(math.pi * fallen(done, rise))) / 2)


def triangle(clock: Clock, *, learning_rate: NonNegative, epochs: Count, rise: Share) -> float:
    """A linear rise over the share `rise` of `epochs`, then a linear fall that reaches zero at their end."""
    done = progress(clock, epochs)
    return learning_rate * (done / rise if done < rise else 1 - fallen(done, rise))


def times(schedule: Callable[..., float], factor: float) -> Callable[..., float]:
    """A schedule with all rates multiplied by `factor`."""
    if factor == 1:
        return schedule

    @functools.wraps(getattr(schedule, "func", schedule))  # for its parameters
    def multiplied(clock: Clock, **settings: Any) -> float:
        return factor * schedule(clock, **settings)

    return multiplied


def progress(clock: Clock, epochs: int) -> float:
    """The fraction of `epochs` that is done in the middle of this step, so that no step has a rate of zero."""
    return min(1.0, (clock.epoch + (clock.step + 0.5) / clock.steps) / epochs)


def fallen(done: float, rise: float) -> float:
    """Progress of the decay, from 0 at the peak to 1 at the end."""
    return (done - rise) / (1 - rise) if rise < 1 else 0.0
