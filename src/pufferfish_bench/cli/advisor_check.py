"""Compare the advisor's predictions with real runs between two hosts of the network lab. Needs root.

    pufferfish advisor-check --out results/advisor

Computation is measured by the advisor on both hosts at once, the network of each rate by a micro-benchmark, all before the
runs. Everything uses one thread for each host and the lock of this machine: nothing else of this package measures meanwhile.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.advisor import check
from pufferfish_bench.base import cores
from pufferfish_bench.base.console import complain, say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import netlab
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.distributed import units
from pufferfish_bench.distributed.lab import Lab
from pufferfish_bench.paper import machine_lock
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.records.files import now, read_json, replace_file, write_json
from pufferfish_bench.training.signals import Interrupts

NETWORK = "network"  # first word of the command that each host runs to measure the network

WHAT = (
    "Compares the advisor's predictions with real runs between two hosts of the network lab. Needs root; takes under 25 minutes."
)


def parser() -> Parser:
    parser = Parser("advisor-check", WHAT, examples={"pufferfish advisor-check --toy": "one small model at one rate"})
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="only these models of advisor/check.yaml")
    parser.add_argument("--caps", nargs="+", metavar="RATE", help="other rates of the links, such as 100mbit")
    parser.add_argument("--toy", action="store_true", help="one small model at one rate: to see that it works")
    parser.add_argument(
        "--out", type=Path, default=Path("results/advisor"), metavar="FOLDER", help="folder of README.md and check.json"
    )
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    found = check.settings(given.toy)
    caps = given.caps or found["caps"]
    for cap in caps:
        units.bits_per_second(cap)
    cases = check.cases(found, given.models)
    alone = contextlib.nullcontext() if given.toy else machine_lock.held(exclusive=True)
    try:
        with tempfile.TemporaryDirectory() as folder, alone:
            rows, conditions = measure_all(cases, caps, found, Path(folder))
    except Stop as stop:
        sys.exit(128 + stop.signal)
    given.out.mkdir(parents=True, exist_ok=True)
    machine = conditions["hardware"]
    remark = (
        f"Two hosts in network namespaces, one thread each, on {machine['device']} with {machine['cores']} cores; mean of "
        f"{found['timed_steps']} steps. Computation was measured on both hosts at once, and the network by a micro-benchmark "
        "in a lab of the same rate, before the runs."
    )
    settings = found | {"caps": list(caps), "models": {case.name: found["models"][case.name] for case in cases}}
    record = {"rows": rows, "summary": check.summary(rows), "date": now(), "settings": settings} | conditions
    write_json(given.out / "check.json", record)
    replace_file(given.out / "README.md", f"# Advisor check\n\n{check.sheet(rows, remark).markdown()}\n")
    say(check.summary(rows))


def measure_all(
    cases: Sequence[check.Case], caps: Sequence[str], found: dict[str, Any], folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """First what the predictions need, then the runs. Also returns the commit, versions and hardware that they share."""
    networks, advices = {}, {}
    for cap in caps:
        complain(f"network at {cap}")
        in_lab(cap, "pufferfish_bench.cli.advisor_check", [NETWORK, str(folder / f"{cap}.json")])
        networks[cap] = read_json(folder / f"{cap}.json")
    for case in cases:
        complain(f"{case.name}: advisor")
        in_lab(found["quiet_cap"], "pufferfish_bench.cli.advise", case.advisor_words(folder / case.name, found["rounds"]))
        advices[case.name] = read_json(folder / f"{case.name}.json")
    rows = []
    for case in cases:
        for cap in caps:
            complain(f"{case.name}: runs at {cap}")
            runs = folder / f"{case.name}-{cap}"
            in_lab(cap, "pufferfish_bench", case.run_words(found["common"], found["timed_steps"], runs))
            rows += check.compare(case.name, cap, advices[case.name], networks[cap], runs)
            for row in rows[-len(check.LABELS) :]:
                complain(f"  {row['method']}: predicted {row['predicted']:.3f} s, measured {row['measured']:.3f} s")
    advice = next(iter(advices.values()))
    return rows, {key: advice[key] for key in ("commit", "dirty", "versions", "hardware") if key in advice}


def in_lab(cap: str, module: str, words: Sequence[str]) -> None:
    """Run a module under torchrun on all hosts of a lab with links of this rate."""
    with Interrupts(children=[]) as interrupts, Lab(hosts=check.HOSTS, cap=round(units.bits_per_second(cap))) as lab:
        commands = [netlab.training(lab, host, 1, words, module) for host in range(lab.hosts)]
        # without the description of the lab, a run does not measure the network itself, which takes longer than its steps
        environment = {key: value for key, value in netlab.environment(lab, 1).items() if key != cores.LAB}
        code = netlab.run(lab, commands, environment, interrupts)
    if code:
        raise InputError(f"{module} failed in the lab with code {code} at {cap}; its output is above")


def measure_network(out: Path) -> None:
    """One host's part of the micro-benchmark; rank 0 writes what was found."""
    from pufferfish_bench.distributed import network
    from pufferfish_bench.distributed import world as worlds

    world = worlds.join("cpu", timeout=600, warn_after=60)
    found = network.measure(world)
    if world.rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == [NETWORK]:
        measure_network(Path(sys.argv[2]))
    else:
        main()
