"""The commands of this package. Imports nothing heavy: each command imports what it needs when it starts."""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A subcommand of pufferfish."""

    summary: str  # one line
    module: str  # in this package
    function: str = "main"  # reads sys.argv
    script: bool = False  # is also installed under the name pufferfish-NAME


COMMANDS = {
    "run": Command("train a model with a method on a data set, or resume a run", "run", "run", script=True),
    "compare": Command("runs side by side: sizes, times, metrics, curves", "compare", script=True),
    "payoff": Command("does one run pay against another: sizes, times and metric with ratios", "payoff"),
    "describe": Command("layers, ranks, parameters and MACs of a model or of a run", "describe", "run", script=True),
    "export": Command("write the model of a run to a file of its own", "export", "run", script=True),
    "translate": Command("translate sentences with the model of a run", "translate", "run", script=True),
    "breakdown": Command("where the time of a step went", "breakdown"),
    "warmup": Command("how the layers changed before the switch to low rank", "warmup"),
    "advise": Command("which method pays for a model on a network", "advise", "run", script=True),
    "whatif": Command("predicted times with more workers or on another network", "whatif", script=True),
    "netlab": Command("train on several hosts on one machine, over capped links (needs root)", "netlab"),
    "tables": Command("run what is missing of the paper's tables and figures", "reproduce", "run"),
    "report": Command("the paper's tables beside ours, from the records", "report", script=True),
    "bench": Command("measure speed against rivals, as ratios", "bench"),
    "advisor-check": Command("compare the predictions of advise with real runs (needs root)", "advisor_check"),
}


def program(name: str) -> str:
    """How the user calls a command: as a subcommand of pufferfish, or by a name of its own."""
    if Path(sys.argv[0]).name == f"pufferfish {name}" or not COMMANDS[name].script:
        return f"pufferfish {name}"
    return f"pufferfish-{name}"


def start(name: str) -> None:
    """Run a command with the words in sys.argv."""
    command = COMMANDS[name]
    getattr(import_module(f"pufferfish_bench.cli.{command.module}"), command.function)()
