"""Times named sections of a training step, which add up to the step. Never waits for a GPU inside a step."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

FIRST_STEPS = "first_steps"  # the section of the untimed steps of a phase
OTHER = "other"  # time of a timed step outside all sections
FOLD_AT = 4096  # CUDA events that are kept before they are converted to seconds


class Stopwatch:
    """Seconds per section since the last `take`; the first steps of a phase are separate."""

    def __init__(
        self, *, device: torch.device, untimed_steps: int, clock: Callable[[], float] = time.perf_counter,
        event: Callable[..., Any] = torch.cuda.Event,
    ):  # fmt: skip
        self.cuda = device.type == "cuda"
        self.clock = clock
        self.event = event
        self.untimed_steps = untimed_steps  # compiling, allocating and tuning kernels make these slower than the others
        self.steps_left = untimed_steps
        self.timed_steps = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.marks: list[tuple[str, Any, Any]] = []
        self.open: str | None = None

    def phase_started(self) -> None:
        """Do not time the next steps: they warm up caches."""
        self.steps_left = self.untimed_steps

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step."""
        first_mark = len(self.marks)
        start = self.mark()
        yield
        end = self.mark()
        if self.steps_left:
            self.steps_left -= 1
            self.marks[first_mark:] = [(FIRST_STEPS, start, end)]
        else:
            self.timed_steps += 1
            self.marks.append((OTHER, start, end))  # `fold` subtracts the sections inside
        if not self.cuda or len(self.marks) > FOLD_AT:
            self.fold()

    @contextmanager
    def __call__(self, section: str) -> Iterator[None]:
        """Time a section of a step; sections do not nest."""
        if self.open is not None:
            raise RuntimeError(f"section {section!r} opened inside {self.open!r}: sections of a step do not nest")
        self.open = section
        start = self.mark()
        try:
            yield
        finally:
            self.marks.append((section, start, self.mark()))
            self.open = None

    def reassign(self, section: str, stretches: Sequence[tuple[Any, Any]]) -> None:
        """Move intervals of the last section, from mark to mark (None: to its end), to `section`."""
        name, start, end = self.marks.pop()
        for first, last in stretches:
            self.marks += [(name, start, first), (section, first, end if last is None else last)]
            start = end if last is None else last
        self.marks.append((name, start, end))

    def take(self) -> tuple[dict[str, float], int]:
        """Seconds per section and the number of timed steps since the last call; the sections add up to all steps."""
        self.fold()
        taken = dict(self.seconds), self.timed_steps
        self.seconds, self.timed_steps = defaultdict(float), 0
        return taken

    def state_dict(self) -> dict[str, Any]:
        self.fold()
        return {"seconds": dict(self.seconds), "timed_steps": self.timed_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.timed_steps = defaultdict(float, state["seconds"]), state["timed_steps"]

    def mark(self) -> Any:
        if not self.cuda:
            return self.clock()
        event = self.event(enable_timing=True)
        event.record()
        return event

    def fold(self) -> None:
        if self.cuda and self.marks:
            self.marks[-1][2].synchronize()
        for section, start, end in self.marks:
            seconds = start.elapsed_time(end) / 1000 if self.cuda else end - start
            self.seconds[section] += seconds
            if section not in (FIRST_STEPS, OTHER):
                self.seconds[OTHER] -= seconds
        self.marks.clear()


def over_ranks(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sections of all ranks as one breakdown: means, which still add up, and the slowest and fastest rank of each."""
    names = sorted(set().union(*seconds))
    taken = {name: [rank.get(name, 0.0) for rank in seconds] for name in names}
    breakdown = {f"seconds_{name}": sum(values) / len(values) for name, values in taken.items()}
    if len(seconds) > 1:
        breakdown |= {f"slowest_{name}": max(values) for name, values in taken.items()}
        breakdown |= {f"fastest_{name}": min(values) for name, values in taken.items()}
    return breakdown
