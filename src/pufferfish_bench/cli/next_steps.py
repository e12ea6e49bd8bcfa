"""What a run says at its end: commands that work when they are pasted into the same shell, in the same directory."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pufferfish_bench.base import cores
from pufferfish_bench.base.console import PART_OF_MANY, RANK, say
from pufferfish_bench.records.finding import RUNS

VARIABLES = ("PUFFERFISH_DATA", "PUFFERFISH_CONF")  # perhaps set for this command only


def after_end(directory: Path) -> None:
    """After a finished run: compare, describe, and the curves if there are any."""
    layers = {f"{spelled('pufferfish-describe')} {run_setting(directory)}": "what was done to its layers"}
    show(compare(directory) | layers | curves(directory))


def after_stop(directory: Path) -> None:
    """After a run that was stopped: the command that resumes it, and the curves so far."""
    show(({command: "resume"} if (command := this_command()) else {}) | compare(directory) | curves(directory))


def after_sweep(directories: Sequence[Path]) -> None:
    """After the runs of a sweep: all of them side by side."""
    show({shlex.join([spelled("pufferfish-compare"), *map(str, directories)]): "these runs side by side"})


def show(commands: Mapping[str, str]) -> None:
    """Print the commands, each with a remark, on rank 0, unless another command trains many runs and reports itself."""
    if RANK or os.environ.get(PART_OF_MANY):
        return
    for place, (command, remark) in enumerate(commands.items()):
        say(f"{'' if place else 'next:':<10}{command}  # {remark}")


def compare(directory: Path) -> dict[str, str]:
    below = RUNS.resolve() in directory.resolve().parents
    words = "" if below else f" {shlex.quote(str(directory))}"
    return {f"{spelled('pufferfish-compare')}{words}": "beside other runs" if below else "its results in a table"}


def curves(directory: Path) -> dict[str, str]:
    folder = directory / "tensorboard"
    return {f"{spelled('tensorboard')} --logdir {shlex.quote(str(folder))}": "its curves"} if folder.is_dir() else {}


def run_setting(directory: Path) -> str:
    """The setting run=DIR, quoted for Hydra and for the shell."""
    path = str(directory)
    if not re.fullmatch(r"[\w./+-]+", path):
        path = '"' + re.sub(r'(\\*)"', r'\1\1\\"', path) + '"'
    return shlex.quote(f"run={path}")


def spelled(program: str) -> str:
    """A program of this environment as the shell finds it: by its name, or by its path."""
    own = Path(sys.executable).parent / program
    found = shutil.which(program)
    if not own.exists() or (found and Path(found).exists() and own.samefile(found)):
        return program
    return shlex.quote(str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own))


def this_command() -> str | None:
    """The command that this process was started with; None if it was started on several machines or in the network lab."""
    ranks, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if ranks != here or cores.LAB in os.environ:
        return None
    name = Path(sys.argv[0]).name
    if "WORLD_SIZE" in os.environ:
        start = f"{spelled('torchrun')} --standalone --nproc-per-node {ranks} -m pufferfish_bench"
    elif name.startswith("pufferfish"):
        program, *subcommand = name.split()
        start = shlex.join([spelled(program), *subcommand])
    else:
        start = f"{spelled(Path(sys.executable).name)} -m pufferfish_bench"
    own = [f"{name}={shlex.quote(value)}" for name in VARIABLES if (value := os.environ.get(name))]
    return " ".join([*own, start, *map(shlex.quote, sys.argv[1:])])
