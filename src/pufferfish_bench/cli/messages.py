"""Errors become one sentence and exit code 2; log records become lines on standard error. Imports neither Hydra nor torch."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pufferfish_bench
from pufferfish_bench.base.console import RANK, complain
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.explanations import explain

VERSION = f"pufferfish-bench {pufferfish_bench.__version__}"  # printed by every command for --version


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
def command() -> Iterator[None]:
    """Context of a command whose config Hydra composes: errors and log go to standard error, and user modules can be imported."""
    if "--version" in sys.argv[1:]:  # Hydra would print its own version
        print(VERSION)
        sys.exit(0)
    log_to_stderr()
    if not os.environ.get("PUFFERFISH_DATA"):
        os.environ.pop("PUFFERFISH_DATA", None)  # an empty value means unset, not the current folder
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that a user's own model or method is found, as with python -m
    with error_messages():
        yield


def run_with_words(main: Callable[[list[str]], None]) -> None:
    """Run a command that reads the words of its command line itself; answers --version."""
    from pufferfish_bench.config.build import config_errors

    with error_messages(), config_errors():
        if "--version" in sys.argv[1:]:
            print(VERSION)
        else:
            main(sys.argv[1:])


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
