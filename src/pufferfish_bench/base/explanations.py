"""Sentences for errors that the user can fix."""

import errno
import sys

from pufferfish_bench.base.errors import InputError

DISK = {
    errno.ENOSPC: "the disk is full; free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space, then run the same command again",
    errno.EACCES: "permission denied",
    errno.ENOENT: "no such file or directory",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "not a directory",
    errno.EEXIST: "there is a file where a directory should be",
}


def explain(error: Exception) -> str | None:
    """The sentence for an error that the user can fix; None for any other."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        reason = DISK.get(error.errno or 0) or (error.filename and error.strerror)  # an error with a file name is about that file
        return reason and f"{reason}: {error.filename or error.strerror}"
    world = sys.modules.get("pufferfish_bench.distributed.world")  # not imported: there are no ranks
    if world and world.lost(error):
        return (
            f"another rank has ended or hangs ({str(error).splitlines()[0]}); the same command resumes from the last checkpoint"
        )
    return None
