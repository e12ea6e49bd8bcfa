"""How a command speaks to the person who typed it: in sentences, and in exit codes. Knows no command, no Hydra and no torch."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

import pufferfish_bench
from pufferfish_bench.errors import InputError
from pufferfish_bench.visible import visible

VERSION = f"pufferfish-bench {pufferfish_bench.__version__}"  # what every command answers to --version

DISK = {
    errno.ENOSPC: "the disk is full; free some space, then give the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space, then give the same command again",
    errno.EACCES: "permission denied",
    errno.ENOENT: "no such file or directory",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "not a directory",
    errno.EEXIST: "there is a file where a directory should be",
}

RANK = int(os.environ.get("RANK", "0"))  # of this process among those that torchrun started

console = Console(quiet=RANK > 0)
complaints = Console(stderr=True)


@contextlib.contextmanager
def spoken_errors() -> Iterator[None]:
    """What the user can mend becomes a sentence and exit code 2. PUFFERFISH_TRACEBACK=1 shows the traceback."""
    try:
        try:
            yield
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            complain("interrupted; give the same command again to go on")
            sys.exit(128 + signal.SIGINT)
        except (InputError, OSError, RuntimeError) as error:
            sentence = explain(error)
            if not sentence or os.environ.get("PUFFERFISH_TRACEBACK") == "1":
                raise
            complain(f"error: {sentence}")
            sys.exit(2)
        finally:
            sys.stdout.flush()  # now, for what fails when Python ends cannot choose the exit code
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # rich has met it first, and would leave with 1
            sys.exit(128 + signal.SIGPIPE)
        raise


def explain(error: Exception) -> str | None:
    """The sentence for an error the user can mend; None for one that only we can."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        reason = DISK.get(error.errno) or (error.filename and error.strerror)  # what has a file's name is about that file
        return reason and f"{reason}: {error.filename or error.strerror}"
    world = sys.modules.get("pufferfish_bench.world")  # no ranks without it
    if world and world.lost(error):
        return f"another rank is gone ({str(error).splitlines()[0]}); the same command goes on from the last checkpoint"
    return None


def about(seconds: float) -> str:
    """A time to come, as far as it is known."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds:.0f} seconds"


def complain(message: str) -> None:
    say(f"rank {RANK}: {message}" if RANK else message, complaints, lines=True)


def say(words: str, to: Console = console, *, lines: bool = False, style: str = "") -> None:
    """Print words as they are: brackets are no markup, and what would steer the terminal is spelt out.

    With `lines` a line break stays one; who gives names of others in them makes those visible before.
    """
    to.print(Text(visible(words, lines=lines), style), highlight=False, soft_wrap=True)


def speak_up() -> None:
    """From now on, what the package logs is a sentence on standard error."""
    import logging  # reports have nothing to log, and start without it

    class Complaints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if RANK and record.levelno < logging.WARNING:
                return  # rank 0 says it
            complain(f"{'warning: ' if record.levelno >= logging.WARNING else ''}{record.getMessage()}")

    ours = logging.getLogger("pufferfish_bench")
    ours.handlers = [Complaints()]
    ours.setLevel(logging.INFO)
