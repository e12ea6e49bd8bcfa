"""Heartbeats of the ranks through their shared store: a rank that hangs is reported long before a collective times out."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

LOOKS = 10  # checks of the other ranks before a silent one is reported
LEFT = "left"  # the last heartbeat of a rank whose process ends


class Watch:
    """Finds silent ranks and ranks that others wait for. It counts checks instead of seconds: a process that was itself
    suspended for an hour made no checks in that time, and so reports nobody."""

    def __init__(self, *, rank: int, size: int, seconds: float):
        self.rank = rank
        self.seconds = seconds  # between two checks
        self.seen: dict[int, Any] = {}
        self.unchanged = dict.fromkeys(range(size), 0)  # checks since a rank's last new heartbeat
        self.waited = 0  # checks since any rank last reached a collective
        self.arrivals: dict[int, int] = {}
        self.said: dict[int, str] = {}  # problems that this rank has reported and that still exist

    def look(self, signs: dict[int, str]) -> list[str]:
        """Warnings about these heartbeats (each is "<beats> <collectives reached>", or LEFT)."""
        arrivals = {rank: int(sign.split()[1]) for rank, sign in signs.items() if sign != LEFT}
        self.waited = self.waited + 1 if arrivals == self.arrivals else 0
        for rank, sign in signs.items():
            self.unchanged[rank] = self.unchanged[rank] + 1 if self.seen.get(rank) == sign != LEFT else 0
        self.arrivals, self.seen = arrivals, dict(signs)
        silent = {rank for rank, looks in self.unchanged.items() if looks >= LOOKS}
        behind = set()
        if self.waited >= LOOKS:
            alive = {rank for rank, looks in self.unchanged.items() if looks <= 1 or rank in self.said} - silent
            behind = {rank for rank, count in arrivals.items() if count < max(arrivals.values())} & alive
        found = dict.fromkeys(silent, "silent") | dict.fromkeys(behind, "behind")
        speaks = all(rank in silent or signs[rank] == LEFT for rank in range(self.rank))  # only one rank reports
        back = [f"rank {rank} has resumed" for rank in sorted(self.said.keys() - found.keys()) if signs[rank] != LEFT]
        new = {rank: how for rank, how in sorted(found.items()) if speaks and self.said.get(rank) != how}
        self.said = {rank: how for rank, how in (self.said | new).items() if rank in found}
        return back + [self.words(rank, how) for rank, how in new.items()]

    def words(self, rank: int, how: str) -> str:
        if how == "silent":
            seconds = self.unchanged[rank] * self.seconds
            return f"rank {rank} has sent no heartbeat for {seconds:.0f} seconds: its process or its machine hangs"
        return f"rank {rank} is alive, but the others have waited {self.waited * self.seconds:.0f} seconds for it"


class Heartbeat:
    """Two threads: one sends and collects heartbeats, the other checks them and whether the store answers."""

    def __init__(self, store: Any, *, rank: int, size: int, warn_after: float, arrivals: Callable[[], int]):
        self.store = store.clone()  # a connection of its own: the run's may be waiting for something
        self.rank = rank
        self.keys = [f"pufferfish/sign{other}" for other in range(size)]
        self.arrivals = arrivals
        self.period = warn_after / LOOKS
        self.watch = Watch(rank=rank, size=size, seconds=self.period)
        self.signs: dict[int, str] = {}
        self.exchanges = 0
        self.over = threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.exchange, self.judge)]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Tell the other ranks that this one is leaving, if the store still answers."""
        self.over.set()
        for thread in self.threads:  # a thread that still waits for the store when Python exits would abort the process
            thread.join(timeout=5)
        if not self.threads[0].is_alive():
            with contextlib.suppress(RuntimeError):
                self.store.set(self.keys[self.rank], LEFT)  # does not wait for an answer

    def exchange(self) -> None:
        try:
            while not self.over.is_set():
                self.store.set(self.keys[self.rank], f"{self.exchanges} {self.arrivals()}")
                if self.store.check(self.keys):
                    self.signs = {rank: sign.decode() for rank, sign in enumerate(self.store.multi_get(self.keys))}
                self.exchanges += 1
                self.over.wait(self.period)
        except RuntimeError as error:  # the store is gone
            log.debug("heartbeats have ended: %s", error)

    def judge(self) -> None:
        exchanges = unanswered = 0
        while not self.over.wait(self.period):
            unanswered = unanswered + 1 if self.exchanges == exchanges else 0
            exchanges = self.exchanges
            if unanswered == LOOKS:
                log.warning(
                    f"torchrun's store has not answered for {LOOKS * self.period:.0f} seconds: torchrun is stopped or busy"
                )
            elif self.signs and not unanswered:
                for sentence in self.watch.look(self.signs):
                    log.warning(sentence)
