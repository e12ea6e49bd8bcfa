"""A sweep goes on after a run that fails, and names all that failed at its end. Knows no Hydra."""

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence

from pufferfish_bench.speech import RANK, complain, explain

# of ranks for each other, where the first run of all has failed before they met: its settings may be what is wrong
WAITING = {"timeout": 1800.0, "warn_after": 60.0}


class Sweep:
    """The runs of a sweep that failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    @contextlib.contextmanager
    def run(self, overrides: Sequence[str], number: int, device: str) -> Iterator[None]:
        """A run of the sweep, by its number: an error in it is reported and noted, and the sweep goes on.

        What asks for an end of everything is passed on: a signal, a reader of our output who has left, a rank that is gone.
        So is an error that not all ranks have: the others are waiting for this one in the middle of the run.
        """
        try:
            yield
        except BrokenPipeError:
            raise
        except Exception as error:
            sentence = explain(error)
            if lost(error) or not on_all_ranks(number, device):
                raise
            if sentence is None or os.environ.get("PUFFERFISH_TRACEBACK") == "1":
                traceback.print_exc()
            reason = sentence or f"{type(error).__name__}: {error}"
            complain(f"error: {reason}")
            self.failed.append(f"{shlex.join(overrides)}: {reason}")

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """At the end, however it comes, the failed runs are named; if nothing else has set an exit code, it is 1."""
        try:
            yield
        finally:
            failed, self.failed = self.failed, []
            if failed and RANK == 0:
                lines = "".join(f"\n  {line}" for line in failed)
                complain(f"{len(failed)} run{'s' * (len(failed) > 1)} of the sweep failed; the same command tries again:{lines}")
        if failed:
            sys.exit(1)


def on_all_ranks(number: int, device: str) -> bool:
    """Whether this run of a sweep has failed on every rank, and not on this one alone."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from pufferfish_bench import world

    here = world.join("cpu" if device == "cpu" else "auto", **WAITING)  # a device that does not exist may be what failed
    return here.all_failed(number)


def lost(error: Exception) -> bool:
    """Whether an error says that another rank is gone: without it no further run can begin."""
    world = sys.modules.get("pufferfish_bench.world")
    return bool(world and world.lost(error))
