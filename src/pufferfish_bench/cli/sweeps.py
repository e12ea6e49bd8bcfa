"""A sweep continues after a run that fails, and lists the failed runs at the end. Independent of Hydra."""

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence

from pufferfish_bench.base.console import RANK, complain
from pufferfish_bench.base.explanations import explain

# used if the first run failed before the ranks joined: its own values may be the error
WAITING = {"timeout": 1800.0, "warn_after": 60.0}


class Sweep:
    """Collects the failed runs of a sweep."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.process = os.getpid()

    @contextlib.contextmanager
    def attempt(self, overrides: Sequence[str], number: int, device: str) -> Iterator[None]:
        """One run of the sweep, by its number: an error in it is reported and recorded, and the sweep continues.

        What ends the whole sweep is raised again: a signal, a closed pipe, a rank that has ended, and an error that does not
        occur on all ranks, because the others wait for this rank in the middle of the run.
        """
        try:
            yield
        except BrokenPipeError:
            raise
        except Exception as error:
            if os.getpid() != self.process:  # of a launcher that starts processes: the sweep would not learn of the error
                raise
            sentence = explain(error)
            if lost(error) or not on_all_ranks(number, device):
                raise
            if sentence is None or os.environ.get("PUFFERFISH_TRACEBACK") == "1":
                traceback.print_exc()
            reason = sentence or f"{type(error).__name__}: {error}"
            complain(f"error: {reason}")
            self.failed.append(f"{shlex.join(overrides)}: {reason}")

    @contextlib.contextmanager
    def report(self) -> Iterator[None]:
        """At the end, also after an error, list the failed runs; the exit code is 1 unless another one is set."""
        try:
            yield
        finally:
            failed, self.failed = self.failed, []
            if failed and RANK == 0:
                lines = "".join(f"\n  {line}" for line in failed)
                complain(
                    f"{len(failed)} run{'s' * (len(failed) > 1)} of the sweep failed; run the same command to try again:{lines}"
                )
        if failed:
            sys.exit(1)


def on_all_ranks(number: int, device: str) -> bool:
    """Whether this run of a sweep has failed on every rank, not only on this one."""
    if "WORLD_SIZE" not in os.environ:
        return True
    from pufferfish_bench.distributed import world

    here = world.join("cpu" if device == "cpu" else "auto", **WAITING)  # the device itself may be the error
    return here.all_failed(number)


def lost(error: Exception) -> bool:
    """Whether an error means that another rank has ended: without it no further run can start."""
    world = sys.modules.get("pufferfish_bench.distributed.world")
    return bool(world and world.lost(error))
