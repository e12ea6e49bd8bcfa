"""Times of several contenders that take turns, so that whatever else the machine does befalls all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pufferfish_bench import machine, records


def seconds(contenders: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, list[float]]:
    """The seconds of each contender in each round, after one round that does not count."""
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
    """How many times as long `one` took as `other`: the median over the rounds, each compared with its own neighbour."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def write(path: Path, figures: dict[str, Any]) -> None:
    """Keep the figures with the conditions under which they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, figures | machine.environment(torch.device("cpu")))
    Console().print(f"written: {path}", highlight=False)
