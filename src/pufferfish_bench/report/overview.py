"""What a command that trains many runs shows: a plan, a live overview on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pufferfish_bench.base.console import about, complain, say
from pufferfish_bench.base.printable import printable
from pufferfish_bench.paper import placement
from pufferfish_bench.paper.launching import Watcher, last_lines
from pufferfish_bench.paper.placement import Machine, Planned
from pufferfish_bench.paper.work import Work, share_left

REFRESH_SECONDS = 1.0  # records of running runs are read so often


class Overview(Watcher):
    """Shows which runs are trained, done, failed and left, and for how long. With `live`, below a block that is drawn again."""

    def __init__(
        self,
        works: Sequence[Work],
        machine: Machine,
        seconds: Mapping[Path, float],
        *,
        console: Console,
        live: bool,
        done: int = 0,
    ) -> None:
        self.works, self.machine, self.console = list(works), machine, console
        self.seconds = seconds  # of whole runs, estimated before
        self.total, self.number, self.done, self.failed = done + len(works), done, done, 0
        self.running: dict[Work, tuple[tuple[str, ...], float, float]] = {}  # slots, when it was started, what was left then
        self.over: set[Work] = set()
        self.took: list[float] = []  # the seconds of whole runs that have ended
        self.drawn = 0.0
        self.live = Live(console=console, auto_refresh=False, transient=True) if live and console.is_terminal else None

    def __enter__(self) -> "Overview":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live:
            self.live.stop()

    def started(self, work: Work, slots: tuple[str, ...]) -> None:
        self.number += 1
        self.running[work] = (slots, time.monotonic(), share_left(work.job))
        place = f", on {self.where(slots)}" if self.where(slots) else ""
        say(f"run {self.number} of {self.total}: {work.name}{place}", self.console)

    def where(self, slots: tuple[str, ...]) -> str:
        """The slots in words; empty if there is only one place."""
        if self.machine.has_gpus:
            return f"GPU{'s' * (len(slots) > 1)} {', '.join(slots)}" if slots else "the CPU"
        return ", ".join(slots) if slots and not slots[0].isdecimal() else ""

    def ended(self, work: Work, succeeded: bool, log: Path | None) -> None:
        _, begun, before = self.running.pop(work)
        self.over.add(work)
        if succeeded:
            self.done += 1
            self.took += [(time.monotonic() - begun) / before] if before else []
            if log:
                say(f"done: {work.name}; {self.summary()}", self.console)
            return
        self.failed += 1
        if log:
            lines = "".join(f"\n    {printable(line)}" for line in last_lines(log))
            complain(f"{work.name} failed; {log} ends with{lines}")

    def stopping(self, count: int) -> None:
        say(f"stopping {count} run{'s' * (count != 1)}, with checkpoints", self.console)

    def tick(self) -> None:
        if self.live and time.monotonic() - self.drawn > REFRESH_SECONDS:
            self.drawn = time.monotonic()
            self.live.update(self.block(), refresh=True)

    def summary(self) -> str:
        """The counts, and the time that is left."""
        left = self.remaining()
        counts = {"running": len(self.running), "done": self.done, "failed": self.failed}
        waiting = self.total - sum(counts.values())
        words = ", ".join(f"{count} {name}" for name, count in (counts | {"waiting": waiting}).items())
        if not (waiting or self.running) or (left is not None and left < 1):  # in the end a run evaluates and keeps its record
            return words
        return f"{words}; {'time left: unknown' if left is None else f'{about(left)} left'}"

    def remaining(self) -> float | None:
        """Seconds until all runs have ended; None if nothing is known about one of them."""
        todo = [work for work in self.works if work not in self.over]
        found = [self.left(work) for work in todo]
        if any(one is None for one in found):
            return None
        return placement.finished_after([work.need(self.machine) for work in todo], found, self.machine)

    def left(self, work: Work) -> float | None:
        """Seconds that a run needs: by its own pace if it has made progress, else as estimated, or as those that ended."""
        share = share_left(work.job)
        mean = sum(self.took) / len(self.took) if self.took else None
        estimated = self.seconds.get(work.directory, mean)
        if work in self.running:
            _, begun, before = self.running[work]
            if before > share:
                return (time.monotonic() - begun) / (before - share) * share
        return None if estimated is None else estimated * share

    def block(self) -> Group:
        rows = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("running", "where", "done", "for", "left"):
            rows.add_column(column, justify="left" if column in ("running", "where") else "right", overflow="fold")
        for work, (slots, begun, _) in self.running.items():
            left = self.left(work)
            cells = (
                work.name, self.where(slots) or "this machine", f"{100 * (1 - share_left(work.job)):.0f} %",
                about(time.monotonic() - begun).removeprefix("about "), "unknown" if left is None else about(left),
            )  # fmt: skip
            rows.add_row(*(Text(printable(cell)) for cell in cells))
        return Group(rows, Text(self.summary(), style="bold"))


def plan(works: Sequence[Work], machine: Machine, hours: Mapping[Path, float]) -> list[str]:
    """The lines of a dry run: each cell with its workers, where and when its runs would be trained, and the totals."""
    needs = [work.need(machine) for work in works]
    durations = [hours.get(work.directory, 0.0) * share_left(work.job) for work in works]
    planned = placement.planned(needs, durations, machine)
    cells: dict[str, list[int]] = {}
    for number, work in enumerate(works):
        cells.setdefault("/".join(work.name.split("/")[:2]), []).append(number)
    lines = [cell_line(name, places, works, machine, planned, hours) for name, places in cells.items()]
    known = [work for work in works if work.directory in hours]
    placed = f"total: {len(works)} runs to train, {len(planned)} can be placed here"
    if not known:
        return [*lines, f"{placed}; the tables have no hours for this profile, and a dry run does not measure"]
    busy = sum(duration * need.slots for duration, need in zip(durations, needs, strict=True) if machine.fits(need))
    end = max((run.end for run in planned.values()), default=0.0)
    amount = f"{busy:,.1f} {'GPU ' * machine.has_gpus}hours of work, over after {end:,.1f} hours"
    unknown = f"; {len(works) - len(known)} runs have no estimate" if len(known) < len(works) else ""
    return [*lines, f"{placed}: {amount}{unknown}"]


def cell_line(
    name: str,
    places: Sequence[int],
    works: Sequence[Work],
    machine: Machine,
    planned: Mapping[int, Planned],
    hours: Mapping[Path, float],
) -> str:
    first = places[0]
    need, known = works[first].need(machine), hours.get(works[first].directory)
    workers = works[first].cell.workers
    parts = [f"{len(places)} run{'s' * (len(places) > 1)}", f"{workers} worker{'s' * (workers > 1)}"]
    parts += [] if known is None else [f"{known:,.2f} hours each"]
    if need.alone:
        parts.append("alone on the machine")
    if first in planned:
        used = sorted({slot for place in places for slot in planned[place].slots}, key=lambda slot: (len(slot), slot))
        begin, end = min(planned[place].start for place in places), max(planned[place].end for place in places)
        if machine.has_gpus:
            parts.append(f"GPU{'s' * (len(used) > 1)} {','.join(used)}" if used else "on the CPU")
        parts += [] if known is None else [f"from {begin:,.1f} to {end:,.1f} h"]
    else:
        parts.append("CANNOT BE PLACED HERE")
    return f"  {name}: {', '.join(parts)}"
