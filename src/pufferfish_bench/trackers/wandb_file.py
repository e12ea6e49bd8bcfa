"""Reads back which steps an offline run of Weights & Biases has on disk.

The package writes its files in the background, some seconds late, so a kill loses the end of what was logged. The file is a log
in LevelDB's format: blocks of 32 KiB with fragments of records, each a protobuf message of the package.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

START, BLOCK, HEAD = 7, 32768, 7  # bytes: the head of the file, a block, the head of a fragment (checksum, length, kind)
FULL, FIRST, LAST = 1, 2, 4  # kinds of fragments; between FIRST and LAST there may be others


def logged_steps(paths: Iterable[Path]) -> set[int]:
    """The steps of the history in these files; a record that is cut off is not there."""
    from wandb.proto import wandb_internal_pb2

    steps = set()
    for path in paths:
        for content in records(path.read_bytes()):
            history = wandb_internal_pb2.Record.FromString(content).history  # type: ignore[attr-defined]
            steps |= {int(json.loads(item.value_json)) for item in history.item if "_step" in (item.key, *item.nested_key)}
    return steps


def is_complete(path: Path) -> bool:
    """Whether the end of the run is in its file, which comes after everything else."""
    from wandb.proto import wandb_internal_pb2

    messages = (wandb_internal_pb2.Record.FromString(content) for content in records(path.read_bytes()))  # type: ignore[attr-defined]
    return any(message.HasField("exit") for message in messages)


def records(content: bytes) -> Iterator[bytes]:
    """The complete records of a log."""
    place, record = START, b""
    while place + HEAD <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEAD:  # the rest of a block is too short for a fragment
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        end = place + HEAD + length
        if kind == 0 or end > len(content):
            return
        record = (b"" if kind in (FULL, FIRST) else record) + content[place + HEAD : end]
        place = end
        if kind in (FULL, LAST):
            yield record
