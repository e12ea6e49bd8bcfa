"""Checkpoints that survive a kill, a full disk and a flipped bit: written to a temporary file, checksummed, then renamed.

A file is the output of torch.save followed by its SHA-256. It contains tensors and plain data only. The previous one is kept.
"""

import hashlib
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch

from pufferfish_bench.base.errors import Damaged, InputError
from pufferfish_bench.distributed.world import World
from pufferfish_bench.records.reader import FORMAT, check_format

log = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size


class Checkpoints:
    """The checkpoints of one rank of a run, named by the epoch and step at which they were taken."""

    def __init__(self, *, directory: Path, world: World, keep: int = 2):
        self.directory = directory / f"rank{world.rank}" if world.rank else directory
        self.world = world
        self.keep = keep
        self.once_whole = self.directory / "once_whole"  # exists if all of several ranks have ever saved the same checkpoint

    def paths(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(self.directory.glob("epoch*-step*.pt"))

    def save(self, shared: dict[str, Any], local: dict[str, Any]) -> Path:
        """Write a checkpoint, or change nothing if that fails. Rank 0 writes the shared state, every rank its own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / name(shared)
        write(path, {"format": FORMAT, "shared": shared if self.world.rank == 0 else None, "local": local})
        self.world.barrier()  # the oldest is deleted only when every rank has the newest
        if self.world.size > 1:
            self.once_whole.touch()
        for old in self.paths()[: -self.keep]:
            old.unlink()
        return path

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that is intact on every rank; a damaged one is reported and set aside."""
        whole = {}
        for path in reversed(self.paths()):
            try:
                whole[path.name] = halves(path, first=self.world.rank == 0)
                if self.world.size == 1:
                    break
            except Damaged as damage:
                self.set_aside(path, str(damage))
        everywhere = self.world.gather(list(whole))
        common = set.intersection(*map(set, everywhere))
        once_whole = self.once_whole.exists() or len(self.paths()) > 1  # a second is written only when all ranks have the first
        if not any(everywhere) or (not common and not any(self.world.gather(once_whole))):
            if any(everywhere):
                log.warning("the run was killed before all ranks had written its first checkpoint: starting from the beginning")
            for path in (*self.paths(), self.once_whole):
                path.unlink(missing_ok=True)
            return None
        if not common:
            without = [rank for rank, names in enumerate(everywhere) if not names]
            raise InputError(
                f"no checkpoint in {self.directory} exists on all ranks"
                + (f" (none for rank {', '.join(map(str, without))})" if without else "")
                + "; copy the missing ones there, or delete the checkpoints of all ranks to start from the beginning"
            )
        newest = max(common)
        for path in self.paths():  # of a step that not all ranks have saved: it will be trained again
            if path.name > newest:
                path.unlink()
        return whole[newest]["local"] | self.world.broadcast_object(whole[newest]["shared"])

    def reject(self, saved: dict[str, Any], why: str) -> None:
        """Set aside a checkpoint that `load` returned and that does not fit the run; called on all ranks."""
        path = self.directory / name(saved)
        self.set_aside(path, f"checkpoint {path} is damaged: {why}")

    def set_aside(self, path: Path, damage: str) -> None:
        aside = path.rename(path.with_suffix(".damaged"))
        before = "falling back on the one before it" if self.paths() else "there is none before it: starting from the beginning"
        log.warning(f"{damage} (now {aside.name}); {before}")


class HashingWriter(io.RawIOBase):
    """A file that computes the checksum of what is written to it."""

    def __init__(self, file: io.BufferedWriter):
        self.file = file
        self.hash = hashlib.sha256()
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as failure:
            self.failure = failure  # torch.save would replace it by an error of its own
            raise


def write(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`, completely or not at all."""
    beside = path.with_suffix(".part")
    try:
        with beside.open("wb") as file:
            writer = HashingWriter(file)
            try:
                torch.save(state, writer)  # type: ignore[arg-type]  # any writable object will do
            except RuntimeError as error:
                raise writer.failure or error from None
            file.write(writer.hash.digest())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as failure:
        failure.filename = failure.filename or str(beside)  # a failed write does not name its file
        raise
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path | str) -> dict[str, Any]:
    """The state in a checkpoint file, as tensors on the CPU and plain data; Damaged if it cannot be read."""
    content = Path(path).read_bytes()
    payload, digest = memoryview(content)[:-DIGEST], content[-DIGEST:]
    if len(content) <= DIGEST or hashlib.sha256(payload).digest() != digest:
        raise Damaged(f"checkpoint {path} is damaged")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a foreign file may fail in any way: as a pickle, as an archive, as a tensor
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(f"checkpoint {path} is damaged: {reason}") from error


def name(shared: dict[str, Any]) -> str:
    """The file name of a checkpoint: its epoch and its step."""
    return f"epoch{shared['epoch']:05d}-step{shared['step']:07d}.pt"


def halves(path: Path, *, first: bool) -> dict[str, Any]:
    """The shared and the local state in a checkpoint file; only the file of the `first` rank has the shared state."""
    state = read(path)
    if not isinstance(state, dict) or not {"shared", "local"} <= set(state) or not isinstance(state["local"], dict):
        raise Damaged(f"checkpoint {path} is damaged: it is not what a run writes")
    check_format(state, f"checkpoint {path}")
    shared = state["shared"]
    if first:
        place = [shared.get(key) for key in ("epoch", "step")] if isinstance(shared, dict) else [None]
        if not all(type(number) is int and number >= 0 for number in place):
            raise Damaged(f"checkpoint {path} is damaged: it has no epoch and step")
        if name(shared) != path.name:
            raise Damaged(f"checkpoint {path} is damaged: it says epoch {shared['epoch']}, step {shared['step']}")
    return state
