"""SIGTERM and Ctrl-C as a wish that the trainer grants at the end of a step."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """Remembers the first signal; a second Ctrl-C does not wait."""

    def __init__(self, *, say: Callable[[str], None]):
        self.say = say
        self.received: int | None = None

    def __enter__(self) -> "Interrupts":
        self.before: dict[int, Any] = {number: signal.signal(number, self.receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        self.say(f"{signal.Signals(number).name} received: stopping at the end of this step")

    def requested(self) -> bool:
        return self.received is not None
