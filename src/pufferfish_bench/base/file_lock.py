"""Locks of open files, which the system releases when their process ends, however it ends."""

import fcntl


def locked(file: int, mode: int = fcntl.LOCK_EX) -> bool:
    """Try to lock a file; whether that succeeded. Some network file systems have no locks: there it always does."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
