"""The directory of a run: it belongs to one set of settings and, at a time, to one process."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import RUN
from pufferfish_bench.settings import with_later
from pufferfish_bench.visible import visible


def finished(directory: Path, settings: dict[str, Any]) -> bool:
    """Whether the directory holds this run, done; a run with other settings is refused."""
    if not (directory / RUN).exists():
        return False
    try:
        record = checked.read_run(directory)
    except InputError as error:
        raise InputError(f"{error}; move the directory away to start anew") from None
    found = differences(with_later(record["settings"]), with_later(settings))
    if found:
        raise InputError(
            f"{directory} holds a run with other settings ({'; '.join(found)}); leave run_dir out, or give another one"
        )
    return "finished" in record


def differences(earlier: Any, now: Any, key: str = "") -> list[str]:
    """The settings in which two runs differ, each as `key: earlier -> now`."""
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [visible(f"{key}: {earlier} -> {now}")]
    absent = "(none)"
    return [
        difference
        for name in earlier | now
        for difference in differences(earlier.get(name, absent), now.get(name, absent), f"{key}.{name}".lstrip("."))
    ]


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the system lets go of it when the process ends, however it ends."""
    with (directory / "lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by worker processes that may outlive us
        except (BlockingIOError, PermissionError):
            raise InputError(f"{directory} is being written by another process; wait for it or stop it") from None
        except OSError:  # some network file systems have no locks: nobody to ask, so go on
            pass
        yield
