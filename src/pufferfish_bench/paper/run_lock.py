"""A run that several tables need is trained once, also if they are made by several commands at the same time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pufferfish_bench.base.file_lock import locked
from pufferfish_bench.paper.supervision import wait_until
from pufferfish_bench.records import run_directory

LOCK = "table-lock"  # in the directory of the run, beside the lock of the process that trains


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold the run for this command. Wait while another one does, or while its training still writes a checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        wait_until(
            lambda: locked(file) and not run_directory.in_use(directory),
            f"waiting until another process ends that trains {directory}; Ctrl-C stops",
        )
        yield
    finally:
        os.close(file)
