"""Times of several contenders that take turns, so that other load on the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pufferfish_bench.base.console import RANK
from pufferfish_bench.records import files
from pufferfish_bench.records.environment import environment

Work = Mapping[str, Callable[[], Any]]


def seconds(contenders: Work, *, rounds: int, before: Work | None = None, warm_up: bool = True) -> dict[str, list[float]]:
    """The seconds of each contender in each round, after one round that is not counted (unless `warm_up` is false).

    `before` holds work that a contender needs done before each of its turns and that is not timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    first = 0 if warm_up else 1
    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=bool(RANK) or not terminal.is_terminal) as progress:
        bar = progress.add_task("", total=(rounds + 1 - first) * len(contenders))
        for number in range(first, rounds + 1):
            for name, work in contenders.items():
                progress.update(bar, description=f"round {number} of {rounds}: {name}")
                if before and name in before:
                    before[name]()
                start = time.perf_counter()
                work()
                if number:
                    taken[name].append(time.perf_counter() - start)
                progress.advance(bar)
    return taken


def ratios(one: list[float], other: list[float]) -> list[float]:
    """How many times as long `one` took as `other`, in each round."""
    return [a / b for a, b in zip(one, other, strict=True)]


def ratio(one: list[float], other: list[float]) -> float:
    """How many times as long `one` took as `other`: the median of the ratios of each round."""
    return statistics.median(ratios(one, other))


def write(path: Path, figures: dict[str, Any]) -> None:
    """Write the numbers with the conditions under which they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, figures | environment(torch.device("cpu")))
    Console().print(f"written: {path}", highlight=False)
