"""Errors become one sentence and exit code 2; log records become lines on standard error. Imports neither Hydra nor torch."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import pufferfish_bench
from pufferfish_bench.base.console import RANK, complain
from pufferfish_bench.base.errors import InputError

VERSION = f"pufferfish-bench {pufferfish_bench.__version__}"  # printed by every command for --version

DISK = {
    errno.ENOSPC: "the disk is full; free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space, then run the same command again",
    errno.EACCES: "permission denied",
    errno.ENOENT: "no such file or directory",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "not a directory",
    errno.EEXIST: "there is a file where a directory should be",
}


@contextlib.contextmanager
def error_messages() -> Iterator[None]:
    """An error that the user can fix becomes a sentence and exit code 2. PUFFERFISH_TRACEBACK=1 shows the traceback."""
    try:
        try:
            yield
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            complain("interrupted; run the same command again to resume")
            sys.exit(128 + signal.SIGINT)
        except (InputError, OSError, RuntimeError) as error:
            sentence = explain(error)
            if not sentence or os.environ.get("PUFFERFISH_TRACEBACK") == "1":
                raise
            complain(f"error: {sentence}")
            sys.exit(2)
        finally:
            sys.stdout.flush()  # here: an error while Python exits could not set the exit code
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except SystemExit as exit:
        if isinstance(exit.__context__, BrokenPipeError):  # rich caught it first and would exit with 1
            sys.exit(128 + signal.SIGPIPE)
        raise


@contextlib.contextmanager
def command(name: str) -> Iterator[None]:
    """Context of a command whose config Hydra composes: errors and log go to standard error, and user modules can be imported."""
    log_to_stderr()
    if not os.environ.get("PUFFERFISH_DATA"):
        os.environ.pop("PUFFERFISH_DATA", None)  # an empty value means unset, not the current folder
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that a user's own model or method is found, as with python -m
    with error_messages():
        if answered(name, sys.argv[1:]):  # Hydra would print its own version and help
            sys.exit(0)
        yield


def run_with_words(name: str, main: Callable[[list[str]], None]) -> None:
    """Run a command that reads the words of its command line itself."""
    from pufferfish_bench.config.build import config_errors

    with error_messages(), config_errors():
        if not answered(name, sys.argv[1:]):
            main(sys.argv[1:])


def answered(name: str, words: Sequence[str]) -> bool:
    """Answer --version and --help; whether the words ask for one of them."""
    if "--version" in words:
        print(VERSION)
    elif {"--help", "-h"} & {*words}:
        from pufferfish_bench.cli import pages

        print(pages.page(name, words).text(), end="")
    else:
        return False
    return True


def explain(error: Exception) -> str | None:
    """The sentence for an error that the user can fix; None for any other."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        reason = DISK.get(error.errno) or (error.filename and error.strerror)  # an error with a file name is about that file
        return reason and f"{reason}: {error.filename or error.strerror}"
    world = sys.modules.get("pufferfish_bench.distributed.world")  # not imported: there are no ranks
    if world and world.lost(error):
        return (
            f"another rank has ended or hangs ({str(error).splitlines()[0]}); the same command resumes from the last checkpoint"
        )
    return None


def log_to_stderr() -> None:
    """Print what the package logs on standard error."""
    import logging  # imported here because reports log nothing and start faster without it

    class ToStderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if RANK and record.levelno < logging.WARNING:
                return  # rank 0 prints it
            complain(f"{'warning: ' if record.levelno >= logging.WARNING else ''}{record.getMessage()}")

    ours = logging.getLogger("pufferfish_bench")
    ours.handlers = [ToStderr()]
    ours.setLevel(logging.INFO)
