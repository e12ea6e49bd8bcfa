"""Which runs start next, and where: pure functions of what is free, what runs and what waits. Starts nothing."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """What a run occupies while it is trained."""

    slots: int  # GPUs, or equal parts of the cores of a machine without GPUs
    alone: bool = False  # nothing else of ours may run on the machine: it measures time


@dataclass(frozen=True)
class Machine:
    """Where runs are trained side by side."""

    slots: tuple[str, ...]  # the names of the GPUs, or numbers of equal parts of the cores
    jobs: int  # most runs at the same time
    has_gpus: bool = False
    is_cluster: bool = False  # each run has machines of its own

    def fits(self, need: Need) -> bool:
        """Whether a run could ever start here."""
        return need.slots <= len(self.slots)


@dataclass(frozen=True)
class Running:
    """What a run that was started occupies."""

    slots: tuple[str, ...]
    alone: bool = False


def starts(waiting: Sequence[Need], running: Sequence[Running], machine: Machine) -> dict[int, tuple[str, ...]]:
    """The runs to start now, by their place in `waiting`, and the slots of each.

    In the order of `waiting`, but a run that does not fit lets others pass. Those that must be alone come last, one at a time:
    so nothing is kept free for them while others could run.
    """
    if any(one.alone for one in running):
        return {}
    taken = {slot for one in running for slot in one.slots}
    free = [slot for slot in machine.slots if slot not in taken]
    room = machine.jobs - len(running)
    found: dict[int, tuple[str, ...]] = {}
    for place, need in enumerate(waiting):
        if not need.alone and need.slots <= len(free) and len(found) < room:
            found[place] = tuple(free[: need.slots])
            free = free[need.slots :]
    if found or running or any(machine.fits(need) and not need.alone for need in waiting):
        return found
    alone = next((place for place, need in enumerate(waiting) if machine.fits(need)), None)
    return {} if alone is None else {alone: machine.slots[: waiting[alone].slots]}


@dataclass(frozen=True)
class Planned:
    """When and where a run would be trained."""

    start: float
    end: float
    slots: tuple[str, ...]


def planned(needs: Sequence[Need], durations: Sequence[float], machine: Machine) -> dict[int, Planned]:
    """When and where the runs that fit would be trained, by their place in `needs`, if each takes its duration."""
    waiting = [place for place, need in enumerate(needs) if machine.fits(need)]
    running: list[tuple[float, int]] = []  # (end, place), a heap
    found: dict[int, Planned] = {}
    clock = 0.0
    while waiting or running:
        busy = [Running(found[place].slots, needs[place].alone) for _, place in running]
        chosen = starts([needs[place] for place in waiting], busy, machine)
        for index, slots in chosen.items():
            place = waiting[index]
            found[place] = Planned(clock, clock + durations[place], slots)
            heapq.heappush(running, (found[place].end, place))
        waiting = [place for index, place in enumerate(waiting) if index not in chosen]
        if running:
            clock, _ = heapq.heappop(running)
    return found


def finished_after(needs: Sequence[Need], durations: Sequence[float], machine: Machine) -> float:
    """When the last of the runs that fit would end."""
    return max((run.end for run in planned(needs, durations, machine).values()), default=0.0)
