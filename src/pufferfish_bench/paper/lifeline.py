"""A file that a process holds locked while it lives, so that others notice when it ends, however it ends."""

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class Lifeline:
    """Held by a process that starts others. They `follow` it, and stop when it is cut or its holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Lifeline":
        self.file = os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def cut(self) -> None:
        """Tell all followers to stop."""
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.file)


def terminate_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def follow(path: Path, ended: Callable[[], None] = terminate_this_process) -> None:
    """Call `ended` once, in a thread, when the holder of the lifeline dies or cuts it."""

    def wait() -> None:
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        except FileNotFoundError:  # the holder has ended already
            pass
        ended()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
