"""Times of several contenders that take turns, so that whatever else the machine does befalls all of them alike."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pufferfish_bench import machine, records

OUT = Path("results/bench")


def arguments(name: str, description: str, *, rounds: int) -> argparse.ArgumentParser:
    """A parser of what all benchmarks take; what it does not understand ends the command with its usage and code 2."""
    parser = argparse.ArgumentParser(prog=f"python -m pufferfish_bench.bench.{name}", description=description.split("\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=rounds, help=f"turns of each contender (default: {rounds})")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the folder for the result (default: {OUT})", metavar="DIR")
    return parser


def at_least_one(word: str) -> int:
    """The number that a word says, for argparse."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number of at least 1")
    return number


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
