"""The network and the workers to predict for, from settings. Needs no torch."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import yaml_files
from pufferfish_bench.distributed import units
from pufferfish_bench.distributed.prediction import COLLECTIVES, uniform
from pufferfish_bench.records.files import RUN
from pufferfish_bench.records.measured import Link

MEASURED = "measured"
MOST_WORKERS = 2**20
EXAMPLES = "a rate such as 10gbit, measured (under torchrun), a JSON file, the directory of a run that measured its network"


@dataclass(frozen=True)
class Network:
    """Links between workers, and where their numbers come from."""

    name: str
    links: Mapping[str, Link]  # by collective
    source: str
    gpus: int | None = None  # of a machine, if that is known

    @property
    def link(self) -> Link:
        """That of allreduce, which most methods use."""
        return self.links["allreduce"]


def cloud() -> dict[str, Any]:
    """The content of cloud.yaml beside this file."""
    return yaml_files.read(Path(__file__).with_name("cloud.yaml"))


def parse(text: str, latency: str) -> Network | None:
    """The network that a setting describes; None if it is to be measured, which needs several processes."""
    fallback = units.seconds(latency)
    if text == MEASURED:
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise InputError(
                "network=measured needs at least 2 workers: use torchrun --nproc-per-node 2 -m pufferfish_bench.cli.advise "
                "network=measured ..., or give a rate such as network=10gbit"
            )
        return None
    if text in (table := cloud()):
        entry = table[text]
        words = f"{entry['provider']} {text}: up to {entry['bandwidth']}, {entry['source']}, {entry['date']}"
        links = uniform(Link(fallback, units.bandwidth(entry["bandwidth"])))
        return Network(text, links, f"{words}; latency {latency} assumed", entry["gpus"])
    path = Path(text)
    if path.exists():
        return from_file(path / RUN if path.is_dir() else path, fallback)
    try:
        rate = units.bandwidth(text)
    except InputError:
        raise InputError(f"network={text} is not known; allowed: {EXAMPLES}, or one of {', '.join(table)}") from None
    return Network(units.show_bits(8 * rate), uniform(Link(fallback, rate)), f"given: {text}, latency {latency}")


def from_file(path: Path, latency: float) -> Network:
    """The network in a JSON file: {"bandwidth": "10gbit", "latency": "50us"}, or the record of a run that measured its own."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, IsADirectoryError) as error:
        raise InputError(f"network={path} is not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"network={path} must hold a JSON object with bandwidth and latency")
    found = data.get("network") or data  # a record, or what network.measure returns
    if "allreduce" in found:
        return measured(found, f"measured, from {path}")
    if "bandwidth" not in data:
        raise InputError(
            f'network={path} has no measured network; give {{"bandwidth": "10gbit", "latency": "50us"}} or {EXAMPLES}'
        )
    given = data.get("latency", latency)
    if not isinstance(data["bandwidth"], str):
        raise InputError(f'bandwidth={data["bandwidth"]} in {path} has no unit: write it as text with one, such as "10gbit"')
    rate = units.bandwidth(data["bandwidth"])
    delay = units.seconds(given) if isinstance(given, str) else given
    check(path, delay, rate)
    return Network(path.stem, uniform(Link(delay, rate)), f"from {path}")


def measured(found: Mapping[str, Any], source: str) -> Network:
    """The network that distributed.network.measure found."""
    links = {}
    for kind in COLLECTIVES:
        try:
            delay, rate = found[kind]["latency"], found[kind]["bandwidth"]
        except (KeyError, TypeError):
            raise InputError(f"the network {source} has no latency and bandwidth of {kind}; measure it again") from None
        check(source, delay, rate)
        links[kind] = Link(delay, rate)
    rate = links["allreduce"].bandwidth
    shown = units.show_bits(8 * rate) if rate < math.inf else "no limit of bandwidth"
    return Network(f"measured: {shown}", links, source)


def check(where: object, latency: Any, bandwidth: Any) -> None:
    for name, value, least in (("latency", latency, 0.0), ("bandwidth", bandwidth, 1e-9)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value or math.isnan(value):
            raise InputError(f"{name}={value} in {where} must be a number of at least 0, and a bandwidth above 0")


def worker_counts(given: Any) -> list[int]:
    """Numbers of workers from 16, [2, 4, 8] or 2..1024 (powers of two, and both ends)."""
    numbers: list[Any]
    if isinstance(given, str) and ".." in given:
        low, _, high = given.partition("..")
        if not (low.isdecimal() and high.isdecimal() and 2 <= int(low) <= int(high) <= MOST_WORKERS):
            raise InputError(f"workers={given} must be a range such as 2..1024, from 2 to {MOST_WORKERS}")
        powers = [2**power for power in range(1, 21)]
        numbers = [int(low), *(power for power in powers if int(low) < power < int(high)), int(high)]
    else:
        numbers = list(given) if isinstance(given, list | tuple) else [given]
    if not numbers or not all(isinstance(n, int) and not isinstance(n, bool) and 2 <= n <= MOST_WORKERS for n in numbers):
        shown = given if isinstance(given, str) else str(given).replace(" ", "")
        raise InputError(
            f"workers={shown} must be a number from 2 to {MOST_WORKERS}, a list such as [2,8,16] or a range such as 2..1024"
        )
    return sorted(set(numbers))
