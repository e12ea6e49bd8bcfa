"""Errors become one sentence and exit code 2; log records become lines on standard error. Imports neither Hydra nor torch."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

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
