"""SIGINT, SIGTERM, SIGUSR1 and SIGHUP as a request to stop: remembered by a trainer, passed on by a supervisor of processes."""

import os
import signal
import subprocess
from types import FrameType
from typing import Any


class Interrupts:
    """Remembers the first signal that asks this process to stop, and counts the signals.

    Without `children` this process trains: it announces the signal, stops at the end of its step, and a second Ctrl-C interrupts
    it at once. With `children`, even an empty list, it supervises them: every signal is passed on to them and nothing interrupts
    the supervisor. A supervisor also listens to SIGHUP, unless it is ignored (nohup). It passes on SIGHUP and SIGUSR1 as SIGTERM,
    which every program knows. Slurm sends SIGUSR1 before the time limit, as `#SBATCH --signal` says.
    """

    def __init__(self, children: list[subprocess.Popen] | None = None) -> None:
        self.children = children
        self.received: int | None = None
        self.count = 0

    def __enter__(self) -> "Interrupts":
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if self.children is not None:
            numbers = [number for number in (*numbers, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
        self.before: dict[int, Any] = {number: signal.signal(number, self.receive) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.received = self.received or number
        if self.children is not None:
            for child in self.children:
                pass_on(number, child)
        elif self.count > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            note = f"{signal.Signals(number).name} received: stopping at the end of this step\n"
            os.write(2, note.encode())  # print is not safe inside a signal handler

    def requested(self) -> bool:
        return self.received is not None

    def supervise(self, child: subprocess.Popen) -> None:
        """Add a child; if a signal has already come, pass it on."""
        assert self.children is not None
        self.children.append(child)
        if self.received is not None:
            pass_on(self.received, child)


def pass_on(number: int, child: subprocess.Popen) -> None:
    """Send a signal to a child process; this does nothing if the child has ended."""
    child.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
