"""The command pufferfish-describe: layers, ranks, parameters and MACs of a model, or what a run did to its layers."""

import json
from pathlib import Path

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.messages import command
from pufferfish_bench.config.build import description
from pufferfish_bench.config.command_line import Job, for_each_config

PAPERS_OWN = ("model", "profile", "json")  # overrides that keep the paper's model


def run() -> None:
    """The command pufferfish-describe."""
    with command("describe"):
        for_each_config("describe", show)


def show(job: Job) -> None:
    """Print the layers and totals of a model: full-rank, hybrid and low-rank."""
    from pufferfish_bench.paper.model_counts import describe as describe_model
    from pufferfish_bench.report import describe

    config, console = job.config, Console()
    if job.refusal:
        raise InputError(job.refusal)
    if config.run is not None:
        describe.show_run(Path(config.run), console)
        return
    if not isinstance(config.json, bool):
        raise InputError(f"json={config.json}: true or false is expected")
    described = describe_model(
        **description(config),
        as_in_paper=config.profile_name == "paper" and all(word.split("=")[0] in PAPERS_OWN for word in job.overrides),
    )
    if config.json:
        print(json.dumps(described, indent=2))
    else:
        describe.show(described, console)
