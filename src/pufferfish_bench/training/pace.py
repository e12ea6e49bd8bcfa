"""How long a run takes: observers that estimate it from the first steps."""

import time
from collections.abc import Callable

from pufferfish_bench.base.console import about
from pufferfish_bench.core import Observer, Run

PATIENCE = 20  # seconds after the first step: a probe ends at the first end of a step after that
LONG = 3600  # seconds: the estimate is printed for longer runs
INSTEAD = {"paper": "profile=cpu is the paper in miniature (minutes), profile=smoke checks that it runs (seconds)"}
Clock = Callable[[], float]


class SlowRun(Observer):
    """After the first steps, estimates how long the run will take; if that is long, prints it once with advice."""

    def __init__(self, *, say: Callable[[str], None], profile: str | None, long: float = LONG, clock: Clock = time.monotonic):
        self.say = say
        self.advice = INSTEAD.get(profile or "", "use fewer epochs, less data or a smaller model.net.width")
        self.long = long
        self.clock = clock
        self.times: list[float] = []  # start of the phase, then the end of each step
        self.done = False

    def phase_started(self, run: Run) -> None:
        self.times = [self.clock()]

    def step_ended(self, run: Run) -> None:
        if self.done:
            return
        self.times.append(self.clock())
        if len(self.times) < 5 and self.times[-1] - self.times[0] < PATIENCE and run.step < run.task.steps(run.epoch):
            return
        self.done = True
        # skip the first step, which warms up, unless it is the only one
        start = min(1, len(self.times) - 2)
        pace = (self.times[-1] - self.times[start]) / (len(self.times) - 1 - start)
        left = sum(run.task.steps(epoch) for epoch in range(run.epoch, run.epochs)) - run.step
        if left * pace > self.long:
            self.say(f"at this pace the run takes {about(left * pace)}, not counting evaluation: {self.advice}")


class Probe(Observer):
    """Times the first steps of a run and estimates how long all its steps would take, without evaluation and surgery."""

    def __init__(self, *, steps: int):
        self.steps = steps
        self.times: list[float] = []  # end of each step
        self.all_steps = 0

    def step_ended(self, run: Run) -> None:
        run.world.synchronise()
        self.times.append(time.perf_counter())
        self.all_steps = run.task.steps(run.epoch) * run.plan[-1].epochs.stop

    def evaluation_started(self, run: Run) -> None:
        self.steps = 0  # end the probe: evaluation would distort the step times

    def over(self) -> bool:
        enough = len(self.times) >= self.steps
        return len(self.times) > 1 and (enough or self.times[-1] - self.times[0] > PATIENCE)

    def found(self) -> dict[str, float]:
        """The estimate, without the first step, which warms up; empty on ranks that measured nothing."""
        if not self.times:
            return {}
        pace = (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)
        return {"steps": self.all_steps, "seconds_per_step": pace, "seconds": self.all_steps * pace}
