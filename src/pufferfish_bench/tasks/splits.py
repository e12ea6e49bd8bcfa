"""Training, validation and test parts of the user's own text: three files, or one file split by shares. Needs no torch."""

import math
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks import text_files

PARTS = ("train", "valid", "test")


def check_shares(shares: Sequence[float]) -> None:
    if len(shares) != len(PARTS) or min(shares) <= 0 or not math.isclose(sum(shares), 1):
        raise InputError(
            f"dataset.shares={list(shares)} must be three numbers above 0 with the sum 1: for training, validation and test"
        )


def read_parts(root: Path, setting: str, file: str | Sequence[str], shares: Sequence[float]) -> list[list[str]]:
    """The lines of the three parts. One file is split in the order of its lines."""
    files = [file] if isinstance(file, str) else list(file)
    if len(files) not in (1, len(PARTS)):
        raise InputError(f"dataset.{setting}={files}: one file is expected, or three: for training, validation and test")
    for name in files:
        if not (root / name).is_file():
            raise InputError(f"dataset.{setting}={name}: there is no file {(root / name).resolve()}")
    texts = [text_files.read_lines(root / name) for name in files]
    if len(texts) == len(PARTS):
        return texts
    check_shares(shares)
    (lines,) = texts
    if len(lines) < len(PARTS):
        raise InputError(f"{root / files[0]} has {len(lines)} lines, too few for training, validation and test")
    held_out = [max(1, round(share * len(lines))) for share in shares[1:]]
    first = max(1, len(lines) - sum(held_out))
    return [lines[:first], lines[first : first + held_out[0]], lines[first + held_out[0] :]]
