"""One lock per machine, so that nothing of ours runs beside a run that measures time.

A run that measures time holds the lock exclusively; all other runs share it. The files are in the directory for temporary files,
which all users share, or in $PUFFERFISH_LOCKS. The system releases the lock when its process ends, however it ends.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.file_lock import locked
from pufferfish_bench.paper.supervision import wait_until

LOCK, QUEUE = "pufferfish-bench.lock", "pufferfish-bench.queue"
WAITING = {
    True: "waiting until the other runs on this machine end, because this one measures time; Ctrl-C stops",
    False: "waiting because another command on this machine measures time, or is about to; Ctrl-C stops",
}
open_files: set[int] = set()


def close_in_child() -> None:
    """A forked child, such as a worker of a data loader, must not keep the lock when this process is killed."""
    while open_files:
        os.close(open_files.pop())


os.register_at_fork(after_in_child=close_in_child)  # programs that are started do not inherit the files anyway


@contextlib.contextmanager
def held(*, exclusive: bool) -> Iterator[None]:
    """Hold the lock of this machine, exclusively or shared. If that means waiting, say so; a signal then raises Stop.

    The queue is a second lock, held only until the first one is. A process that waits for exclusive access blocks the queue, so
    that no new process can share the lock: otherwise processes that run one job after another could delay it for ever.
    """
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with opened(LOCK) as lock:
        with opened(QUEUE) as queue:
            wait_until(lambda: locked(queue, mode) and locked(lock, mode), WAITING[exclusive])
        yield


@contextlib.contextmanager
def opened(name: str) -> Iterator[int]:
    """Open a file to be locked. Reading is enough for that, so a file of another user will do."""
    path = Path(os.environ.get("PUFFERFISH_LOCKS") or tempfile.gettempdir()) / name
    try:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # only now: a file of another user in a shared directory may not be opened with O_CREAT
            file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
            os.fchmod(file, 0o644)  # whatever the umask is: others must be able to open it
    except OSError as error:
        raise InputError(
            f"cannot open the lock {path}: {error.strerror}; PUFFERFISH_LOCKS=DIR chooses another directory"
        ) from None
    open_files.add(file)
    try:
        yield file
    finally:
        open_files.discard(file)
        os.close(file)
