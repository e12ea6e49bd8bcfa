"""The command pufferfish-advise: which method pays for a model on a network. Torch is imported once the settings are checked."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from pufferfish_bench.advisor import networks
from pufferfish_bench.advisor.advice import advise
from pufferfish_bench.advisor.decisions import FEW_ROUNDS
from pufferfish_bench.advisor.overrides import chosen_reducers, shared
from pufferfish_bench.base.console import RANK, complain, complaints
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.messages import command
from pufferfish_bench.config import batches
from pufferfish_bench.config.build import config_errors
from pufferfish_bench.config.command_line import Job, for_each_config
from pufferfish_bench.config.own_configs import config_dirs
from pufferfish_bench.config.settings import plain
from pufferfish_bench.records.files import write_json


def run() -> None:
    """The command pufferfish-advise."""
    with command("advise"):
        for_each_config("advise", show)


def show(job: Job) -> None:
    """Measure, predict, and print the advice or write it."""
    if job.refusal:
        raise InputError(job.refusal)
    config = job.config
    with config_errors():
        check(config)
        network, workers = networks.parse(str(config.network), str(config.latency)), networks.worker_counts(plain(config.workers))
        if config.batch_size is None:
            config.batch_size = batches.to_measure(recipe_batch(config), workers)
        chosen_reducers(plain(config.reducers), job.choices)  # refuses what cannot be compared
        check_out(config.out)
        measured, network = measure(config, network, job.choices)
        if RANK:
            return
        flags = [word for folder in config_dirs(sys.argv[1:]) for word in ("--config-dir", folder)]
        measured |= {"model": config.name, "recipe_batch": recipe_batch(config)}
        found = advise(measured, network, workers, [*flags, *shared(job.overrides)])
    if config.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    if config.out is not None:
        out = Path(config.out)
        write_json(out.with_name(f"{out.name}.json"), found)
    from pufferfish_bench.report import advice  # matplotlib takes a second
    from pufferfish_bench.report.output import say_written

    if not config.json:
        advice.show(found, Console())
    if config.out is not None:
        console = Console(stderr=config.json)
        say_written(out.with_name(f"{out.name}.json"), console)
        advice.draw(found, out, console)


def recipe_batch(config: Any) -> Any:
    """The global batch that the recipe's learning rate was chosen for; None: not known."""
    return OmegaConf.select(config, "schedule.batch")


def check(config: Any) -> None:
    """Refuse wrong settings before torch is imported."""
    for key, least in (("batch_size", 1), ("rounds", 2), ("length", 2), ("epochs", 1), ("warmup_epochs", 0)):
        value = config[key]
        if key == "batch_size" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{key}={value} must be a whole number of at least {least}")
    if config.warmup_epochs >= config.epochs:
        raise InputError(f"warmup_epochs={config.warmup_epochs} must be below epochs={config.epochs}")
    for key in ("json", "quick"):
        if not isinstance(config[key], bool):
            raise InputError(f"{key}={config[key]}: true or false is expected")
    for key, allowed in (("batch", ("sample", "task")), ("layers", ("faster", "all"))):
        if config[key] not in allowed:
            raise InputError(f"{key}={config[key]} is not known; allowed: {', '.join(allowed)}")
    ratios = plain(config.ratios)
    if not isinstance(ratios, list) or not all(
        isinstance(r, int | float) and not isinstance(r, bool) and 0 < r <= 1 for r in ratios
    ):
        raise InputError(f"ratios={ratios} must be a list of numbers above 0 and at most 1, such as [0.5,0.25]")
    if config.run is not None and not Path(str(config.run)).is_dir():
        raise InputError(f"run={config.run} is not a directory: name the directory of a finished run")
    if config.out is not None and not Path(str(config.out)).name:
        raise InputError(f"out={config.out} must be FOLDER/NAME; the files are NAME.json, NAME.png and NAME.svg")


def check_out(out: Any) -> None:
    """Refuse a folder that cannot be written to before anything is measured."""
    if out is None:
        return
    folder = Path(str(out)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise InputError(f"out={out}: the folder {folder} cannot be written to; name another")


def measure(config: Any, network: networks.Network | None, choices: dict[str, str]) -> tuple[dict[str, Any], networks.Network]:
    """The measurements, and the network, which is measured too if it is not given."""
    from pufferfish_bench.advisor import measurement
    from pufferfish_bench.distributed import network as links
    from pufferfish_bench.distributed import world as worlds

    def progress(words: str) -> None:
        if RANK == 0 and complaints.is_terminal:
            complain(words)

    world = worlds.join(config.device, timeout=config.rank_timeout, warn_after=config.rank_warning)
    if network is None:
        progress("measuring the network")
        network = networks.measured(links.measure(world), f"measured between {world.size} processes")
    subject = measurement.subject(config, world, FEW_ROUNDS if config.quick else config.rounds, choices)
    measured = measurement.measure(subject, plain(config.ratios), config.batch_size, progress)
    if config.run is not None:
        ranks = measurement.stable_ranks(Path(config.run), subject, str(config.model.net.get("_target_")))
        for row in measured["layers"]:
            row |= ranks[row["layer"]]
    return measured, network


if __name__ == "__main__":
    run()
