"""Checkpoints that survive a kill, a full disk and a flipped bit: written beside, checksummed, renamed; the previous one is kept.

A file is what torch.save writes followed by the SHA-256 of it. It holds tensors and plain data only.
"""

import hashlib
import io
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pufferfish_bench.errors import InputError
from pufferfish_bench.world import World

log = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size


class Damaged(ValueError):
    """A checkpoint that cannot be used: its checksum does not hold, or what it holds does not fit the run."""


class Checkpoints:
    """The checkpoints of one rank of a run, named by the epoch and step at which they were taken."""

    def __init__(self, *, directory: Path, world: World, keep: int = 2):
        self.directory = directory / f"rank{world.rank}" if world.rank else directory
        self.world = world
        self.keep = keep
        self.once_whole = self.directory / "once_whole"  # there if several ranks have ever had the same checkpoint

    def paths(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(self.directory.glob("epoch*-step*.pt"))

    def save(self, shared: dict[str, Any], local: dict[str, Any]) -> Path:
        """Write a checkpoint or, if anything goes wrong, change nothing: rank 0 what is the same everywhere, all their own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / name(shared)
        write(path, {"shared": shared if self.world.rank == 0 else None, "local": local})
        self.world.barrier()  # the oldest goes when every rank has the newest
        if self.world.size > 1:
            self.once_whole.touch()
        for old in self.paths()[: -self.keep]:
            old.unlink()
        return path

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that every rank has whole; a damaged one is named and passed over."""
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
        once_whole = self.once_whole.exists() or len(self.paths()) > 1  # a second one is begun when all ranks have the first
        if not any(everywhere) or (not common and not any(self.world.gather(once_whole))):
            if any(everywhere):
                log.warning("the run was killed before all ranks had written its first checkpoint: starting anew")
            for path in (*self.paths(), self.once_whole):
                path.unlink(missing_ok=True)
            return None
        if not common:
            without = [rank for rank, names in enumerate(everywhere) if not names]
            raise InputError(
                f"no checkpoint in {self.directory} is there for all ranks"
                + (f" (none for rank {', '.join(map(str, without))})" if without else "")
                + "; bring the missing ones, or remove the checkpoints of all ranks to start anew"
            )
        newest = max(common)
        for path in self.paths():  # of a step that not all ranks have saved, and that is about to be trained again
            if path.name > newest:
                path.unlink()
        return whole[newest]["local"] | self.world.share(whole[newest]["shared"])

    def reject(self, saved: dict[str, Any], why: str) -> None:
        """Set aside a checkpoint that `load` returned and that does not fit the run; called on all ranks."""
        path = self.directory / name(saved)
        self.set_aside(path, f"checkpoint {path} is damaged: {why}")

    def set_aside(self, path: Path, damage: str) -> None:
        aside = path.rename(path.with_suffix(".damaged"))
        before = "falling back on the one before it" if self.paths() else "there is none before it: starting anew"
        log.warning(f"{damage} (now {aside.name}); {before}")


class HashingWriter(io.RawIOBase):
    """A file that remembers the checksum of what was written to it."""

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
            self.failure = failure  # torch.save would bury it under an error of its own
            raise


def write(path: Path, state: dict[str, Any]) -> None:
    """Put `state` under `path`, whole or not at all."""
    beside = path.with_suffix(".part")
    try:
        with beside.open("wb") as file:
            writer = HashingWriter(file)
            try:
                torch.save(state, writer)
            except RuntimeError as error:
                raise writer.failure or error from None
            file.write(writer.hash.digest())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as failure:
        failure.filename = failure.filename or str(beside)  # a failed write does not know where
        raise
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path | str) -> dict[str, Any]:
    """The state under `path`, as tensors on the CPU and plain data; Damaged if it cannot be read."""
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
    """The file of a checkpoint: its epoch and its step."""
    return f"epoch{shared['epoch']:05d}-step{shared['step']:07d}.pt"


def halves(path: Path, *, first: bool) -> dict[str, Any]:
    """The two halves of the checkpoint under `path`; what is the same on all ranks is in that of the first one."""
    state = read(path)
    if not isinstance(state, dict) or not {"shared", "local"} <= set(state) or not isinstance(state["local"], dict):
        raise Damaged(f"checkpoint {path} is damaged: it is not what a run writes")
    shared = state["shared"]
    if first:
        place = [shared.get(key) for key in ("epoch", "step")] if isinstance(shared, dict) else [None]
        if not all(type(number) is int and number >= 0 for number in place):
            raise Damaged(f"checkpoint {path} is damaged: it has no epoch and step")
        if name(shared) != path.name:
            raise Damaged(f"checkpoint {path} is damaged: it says epoch {shared['epoch']}, step {shared['step']}")
    return state


def fingerprint(model: nn.Module) -> str:
    """A hash of all tensors of a model: equal on all ranks, equal after a resume."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
