"""The command that trains what a dry run has planned."""

import shlex
from collections.abc import Mapping, Sequence

from pufferfish_bench.paper import tables

# variables of make, and the options of `pufferfish tables` with a value
VALUES = {
    "PROFILE": "--profile", "SEEDS": "--seeds", "JOBS": "--jobs", "WORKERS": "--workers", "MAX_WORKERS": "--max-workers",
    "LAUNCHER": "--launcher", "SLURM": "--slurm", "GPUS_PER_NODE": "--gpus-per-node",
}  # fmt: skip
SWITCHES = {"CONFIRM=1": "--confirm", "PROBE=0": "--no-probe", "WAIT=0": "--no-wait"}  # and those without


def complete(names: Sequence[str], values: Mapping[str, object], cells: Sequence[str], switches: Sequence[str]) -> str:
    """The command for these tables: that of make if it has a target for them. Values that are None or empty are left out."""
    given = {name: str(value) for name, value in values.items() if value not in (None, "")}
    if target := target_of(names):
        words = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
        words += [f"CELLS={shlex.quote(' '.join(cells))}"] if cells else []
        return " ".join(["make", target, *words, *switches])
    words = [word for name, value in given.items() for word in (VALUES[name], value)]
    words += [word for pattern in cells for word in ("--cells", pattern)]
    return shlex.join(["pufferfish", "tables", *names, *words, *(SWITCHES[switch] for switch in switches)])


def target_of(names: Sequence[str]) -> str | None:
    """The target of make that trains these tables at once; None if there is none."""
    if len(names) == 1:
        return names[0]
    for kind in ("table", "figure"):
        if set(names) == {name for name in tables.names() if name.startswith(kind)}:
            return f"{kind}s"
    return None
