"""The pictures of a table of the network lab: the breakdown of a step on each network, and a forecast for other networks."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.distributed import units
from pufferfish_bench.records.measured import Link, Measured
from pufferfish_bench.report import breakdown, whatif
from pufferfish_bench.report.charts import Picture

CIFAR10 = 50_000  # training images per epoch of the forecast
WORKERS = (2, 4, 8, 16, 64, 256, 1024)


def draw(runs: Sequence[Measured], note: str, out: Path, console: Console, *, seeds: int) -> list[Picture]:
    """Write both as tables and pictures; the forecast uses the first run of each method.

    Each run is the mean over at most `seeds` seeds.
    """
    bars, forecast = (out.with_name(out.name + ending) for ending in ("-breakdown", "-whatif"))
    breakdown.write(runs, bars, console, seeds=seeds)
    link = Link(latency=units.seconds("50us"), bandwidth=units.bandwidth("10gbit"))  # the paper's network
    whatif.write(whatif.forecast(runs, workers=WORKERS, link=link, samples=CIFAR10, note=note), forecast, console)
    return [
        Picture(bars, "the parts of an epoch of each method on each network, as stacked bars"),
        Picture(forecast.with_name(f"{forecast.name}-workers"), "forecast of the time of an epoch over the number of workers"),
        Picture(forecast.with_name(f"{forecast.name}-bandwidth"), "forecast of the time of an epoch over bandwidth"),
    ]
