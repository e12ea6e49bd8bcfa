"""Signs of life of the ranks, through the store that they share: a rank that hangs is named long before a collective gives up."""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

LOOKS = 10  # at the others, in the time after which a silent rank is named
LEFT = "left"  # the last sign of a rank whose process ends


class Watch:
    """Judges what one rank sees of all: which are silent, and which are waited for. Counts looks, and knows no clock:
    a process that was itself stopped for an hour has not looked at the others in that time, and accuses nobody."""

    def __init__(self, *, rank: int, size: int, seconds: float):
        self.rank = rank
        self.seconds = seconds  # between two looks
        self.seen: dict[int, Any] = {}
        self.unchanged = dict.fromkeys(range(size), 0)  # looks since a rank last gave a new sign
        self.waited = 0  # looks since any rank last came to a collective
        self.arrivals: dict[int, int] = {}
        self.said: dict[int, str] = {}  # what this rank has said of others that has not ended yet

    def look(self, signs: dict[int, str]) -> list[str]:
        """What there is to say of these signs (a rank's is "<beats> <collectives that it has come to>", or LEFT)."""
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
        speaks = all(rank in silent or signs[rank] == LEFT for rank in range(self.rank))  # one rank for all
        back = [f"rank {rank} goes on" for rank in sorted(self.said.keys() - found.keys()) if signs[rank] != LEFT]
        new = {rank: how for rank, how in sorted(found.items()) if speaks and self.said.get(rank) != how}
        self.said = {rank: how for rank, how in (self.said | new).items() if rank in found}
        return back + [self.words(rank, how) for rank, how in new.items()]

    def words(self, rank: int, how: str) -> str:
        if how == "silent":
            seconds = self.unchanged[rank] * self.seconds
            return f"rank {rank} has given no sign of life for {seconds:.0f} seconds: its process or its machine hangs"
        return f"rank {rank} is alive, but the others have waited {self.waited * self.seconds:.0f} seconds for it"


class Heartbeat:
    """Two small threads: one gives signs and collects those of others, the other judges them, and that the store answers."""

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
        """Say farewell, if the store still listens."""
        self.over.set()
        for thread in self.threads:  # one that was still asking the store when Python ends would abort the process
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
            log.debug("no more signs of life: %s", error)

    def judge(self) -> None:
        exchanges = unanswered = 0
        while not self.over.wait(self.period):
            unanswered = unanswered + 1 if self.exchanges == exchanges else 0
            exchanges = self.exchanges
            if unanswered == LOOKS:
                log.warning(f"torchrun's store has not answered for {LOOKS * self.period:.0f} seconds: is torchrun stopped?")
            elif self.signs and not unanswered:
                for sentence in self.watch.look(self.signs):
                    log.warning(sentence)
