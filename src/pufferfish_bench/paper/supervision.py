"""Run a command as a child process: signals reach it, and it gets the time to write its checkpoint."""

import subprocess
from collections.abc import Sequence
from typing import Any

from pufferfish_bench.training.signals import Interrupts

GRACE = 60  # seconds to end after SIGTERM: netlab gives its hosts 40, torchrun gives its workers 30


class Stop(Exception):
    """A signal asked us to stop. No child process is left."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = number


def attend(words: Sequence[str], seconds: float | None = None, **options: Any) -> int:
    """Run a command and return its exit code. Signals are passed on to it; raise Stop once it has ended after one.

    After `seconds` the command is terminated, so that it can end its own children, and TimeoutExpired is raised.
    """
    with Interrupts(children=[]) as interrupts:
        child = subprocess.Popen(words, start_new_session=True, **options)
        interrupts.supervise(child)
        late = None
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired as error:
            late = error
            if interrupts.received is None:
                end(child)
            code = child.wait()
    if interrupts.received is not None:
        raise Stop(interrupts.received)
    if late:
        raise late
    return code


def end(child: subprocess.Popen) -> None:
    """Terminate a process, and kill it only if it does not react: its own children would survive that."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
