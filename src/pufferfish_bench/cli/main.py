"""The command pufferfish, which starts all others, and their names of their own, such as pufferfish-run. Starts fast."""

import sys
from functools import partial
from typing import NoReturn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.cli.commands import COMMANDS, start
from pufferfish_bench.cli.help_page import ALWAYS, Page
from pufferfish_bench.cli.messages import VERSION, answered, error_messages
from pufferfish_bench.cli.pages import PAGES

HELP = ("--help", "-h", "help")
ALIASES = {"train": "run", "resume": "run", "list": "compare", "ls": "compare", "reproduce": "tables", "merge": "export"}
EXAMPLES = {
    "pufferfish run method=pufferfish profile=smoke": "train: seconds, no data needed",
    "pufferfish compare": "the runs in results/runs side by side",
    "pufferfish run --help": "the help of a command",
}


def main() -> None:
    """The command pufferfish: its first word is the name of a command, which gets the other words."""
    name, *words = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        completes = any(word.startswith("--shell-completion") for word in words)  # Hydra registers it for the name of the program
        sys.argv[:] = [f"pufferfish-{name}" if completes else f"{sys.argv[0]} {name}", *words]
        begin(name)
        return
    with error_messages():
        if name == "--version":
            print(VERSION)
        elif name in HELP:
            print(help_page().text(), end="")
        elif name.partition("=")[0] == "--shell-completion":
            raise InputError("each command has a completion of its own: pufferfish-run --shell-completion install=bash")
        elif name.startswith("-"):
            raise not_known(f"option {name}", name, ("--help", "--version"))
        else:
            refuse(name)


def refuse(name: str) -> NoReturn:
    """Refuse an unknown command, with what it may mean."""
    if name.startswith(("table", "figure")) and name not in ("table", "figure"):
        raise InputError(f"{name} is not a command; did you mean pufferfish tables {name}?")
    if name in ALIASES:
        raise InputError(f"{name} is not a command; did you mean pufferfish {ALIASES[name]}?")
    raise not_known(f"command {name}", name, list(COMMANDS))


def help_page() -> Page:
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    foot = f"Also installed as {', '.join(f'pufferfish-{name}' for name, each in COMMANDS.items() if each.script)}."
    what = "Low-rank, compressed and pruned training of neural nets: train, compare, predict, and reproduce the paper's tables."
    return Page("pufferfish", "COMMAND ...", what, EXAMPLES, {"Commands": summaries, "Options": ALWAYS}, foot)


def begin(name: str) -> None:
    """Run a command; answer --help and --version before it imports Hydra."""
    if name in PAGES:
        with error_messages():
            if answered(name, sys.argv[1:]):
                return
    start(name)


# the names of the scripts
run, describe, advise, translate, export, compare, whatif, report = (
    partial(begin, name) for name in ("run", "describe", "advise", "translate", "export", "compare", "whatif", "report")
)
