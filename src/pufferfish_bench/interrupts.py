"""SIGTERM and Ctrl-C as a wish that the trainer grants at the end of a step."""

import os
import signal
from types import FrameType
from typing import Any


class Interrupts:
    """Remembers the first signal; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
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
        note = f"{signal.Signals(number).name} received: stopping at the end of this step\n"
        os.write(2, note.encode())  # a print could meet another one half done

    def requested(self) -> bool:
        return self.received is not None
