"""Times of several contenders that take turns, so that other load on the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pufferfish_bench.records import files
from pufferfish_bench.records.environment import environment


def seconds(contenders: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, list[float]]:
    """The seconds of each contender in each round, after one round that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=(rounds + 1) * len(contenders))
        for number in range(rounds + 1):
            for name, work in contenders.items():
                progress.update(bar, description=f"round {number} of {rounds}: {name}")
                start = time.perf_counter()
                work()
                if number:
                    taken[name].append(time.perf_counter() - start)
                progress.advance(bar)
    return taken


def ratio(one: list[float], other: list[float]) -> float:
    """How many times as long `one` took as `other`: the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def write(path: Path, figures: dict[str, Any]) -> None:
    """Write the numbers with the conditions under which they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, figures | environment(torch.device("cpu")))
    Console().print(f"written: {path}", highlight=False)
