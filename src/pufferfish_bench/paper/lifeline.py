"""A file that a process holds locked while it lives, so that others notice when it ends, however it ends."""

import atexit
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pufferfish_bench.base.file_lock import locked

CUT = b"cut"  # written before the lock is released on purpose: the holder lives, and removes the folder of the file itself


class Lifeline:
    """Held by a process that starts others. They `follow` it, and stop when it is cut or its holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Lifeline":
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def cut(self) -> None:
        """Tell all followers to stop."""
        os.write(self.file, CUT)
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.file)


def terminate_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def follow(path: Path, ended: Callable[[], None] = terminate_this_process) -> None:
    """Call `ended` once, in a thread, when the holder of the lifeline dies or cuts it.

    If the holder dies, the last of its followers removes the folder of the file when it ends.
    """

    def wait() -> None:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # the holder has ended already
            ended()
            return
        fcntl.flock(file, fcntl.LOCK_SH)  # and keeps it
        if os.read(file, len(CUT)) == CUT:
            os.close(file)
        else:
            atexit.register(remove_if_last, file, path.parent)
        ended()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def remove_if_last(file: int, folder: Path) -> None:
    """Remove the folder of a dead process, unless another follower may still write there."""
    if locked(file, fcntl.LOCK_EX):
        shutil.rmtree(folder, ignore_errors=True)
