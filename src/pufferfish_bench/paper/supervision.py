"""Run a command as a child process: signals reach it, and it gets the time to write its checkpoint."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from pufferfish_bench.base.console import say
from pufferfish_bench.training.signals import Interrupts

POLL_SECONDS = 0.2
GRACE = 60  # seconds to end after SIGTERM: netlab gives its hosts 40, torchrun gives its workers 30


class Stop(Exception):
    """A signal asked us to stop. No child process is left."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = number


def attend(words: Sequence[str], seconds: float | None = None, **options: Any) -> int:
    """Run a command and return its exit code. Signals are passed on to it; raise Stop once it has ended after one.

    If this process is killed, the system sends the command a SIGTERM (where there is util-linux's setpriv).
    After `seconds` the command is terminated, so that it can end its own children, and TimeoutExpired is raised.
    """
    with Interrupts(children=[]) as interrupts:
        child = subprocess.Popen([*outlived_by_none(), *words], start_new_session=True, **options)
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


def outlived_by_none() -> list[str]:
    """The start of a command that gets a SIGTERM when the process that started it dies."""
    return ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []


def wait_until(ready: Callable[[], bool], message: str) -> None:
    """Wait until `ready` returns true. If that means waiting, print the message; a signal then raises Stop."""
    with Interrupts(children=[]) as interrupts:
        if not ready():
            say(message)
            while not interrupts.requested() and not ready():
                time.sleep(POLL_SECONDS)
    if interrupts.received is not None:
        raise Stop(interrupts.received)


def end(child: subprocess.Popen) -> None:
    """Terminate a process, and kill it only if it does not react: its own children would survive that."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
