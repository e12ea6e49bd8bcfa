"""The directory of a run: it belongs to one set of settings, and only one process at a time writes to it."""

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import RUN, without_rows

SHOWN = 5  # differences that a message lists


def finished(directory: Path, settings: dict[str, Any]) -> bool:
    """Whether the directory holds this run, and it is finished; a run with other settings is refused."""
    if not (directory / RUN).exists():
        return False
    try:
        record = reader.read_run(directory)
    except reader.OtherFormat:
        raise
    except InputError as error:
        raise InputError(f"{error}; move the directory away to start again") from None
    found = differences(record["settings"], settings)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise InputError(
            f"{directory} holds a run with other settings ({'; '.join(found[:SHOWN])}{more}); leave run_dir out or change it"
        )
    return reader.is_finished(record)


def complete(directory: Path, settings: dict[str, Any], links: Mapping[str, int]) -> bool:
    """Whether the directory holds this finished run, over these links of the network lab and with a row for every epoch.

    `links` is empty for a run outside the lab. A run over other links, or one that lacks rows, is refused.
    """
    if not finished(directory, settings):
        return False
    record, rows = reader.read(directory)
    if missing := reader.missing_epochs(record, rows):
        raise InputError(f"the record in {directory} is {without_rows(missing)}; move it away to start again")
    network = record.get("network") or {}
    found = {key: network[key] for key in ("hosts", "cap_bits_per_second") if key in network}
    if found != links:
        different = "; ".join(differences(found, dict(links)))
        raise InputError(f"{directory} holds a run over other links ({different}); move it away to start again")
    return True


def differences(earlier: Any, now: Any, key: str = "") -> list[str]:
    """The settings in which two runs differ, each as `key: earlier -> now`."""
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [printable(f"{key}: {earlier} -> {now}")]
    absent = "(none)"
    return [
        difference
        for name in earlier | now
        for difference in differences(earlier.get(name, absent), now.get(name, absent), f"{key}.{name}".lstrip("."))
    ]


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory for this process; the system releases the lock when the process ends, however it ends."""
    with (directory / "lock").open("a") as file:
        if not locked(file):
            raise InputError(f"another process is writing to {directory}; wait until it ends, or stop it")
        yield


def in_use(directory: Path) -> bool:
    """Whether another process writes to the directory."""
    if not (directory / "lock").exists():
        return False
    with (directory / "lock").open("a") as file:
        return not locked(file)


def locked(file: IO[str]) -> bool:
    """Try to lock a file; whether that succeeded. Some network file systems have no locks: there it always does."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by worker processes that may outlive us
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True
