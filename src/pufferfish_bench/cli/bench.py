"""Benchmarks: speed as ratios of implementations that are measured in turn.

pufferfish bench all [--quick] | SUBJECT [--quick] | table | beam RUN FOLDER
"""

import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import complain, console
from pufferfish_bench.bench import suite
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.paper import machine_lock
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import RUN

OUT, QUICK_OUT = Path("results/bench"), Path("results/runs/bench-quick")
FURTHER = {
    "all": "all subjects, each in a process of its own, then the table",
    "table": "the table and the pictures again, from the files of the subjects",
    "beam": "beam search over many sentences at once, against one by one",
}

WHAT = "Measures speed as ratios of implementations that are measured in turn."


def at_least_one(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {word}")
    return int(word)


def folder(word: str) -> Path:
    if not Path(word).is_dir():
        raise ArgumentTypeError(f"there is no folder {word}")
    return Path(word)


def run_directory(word: str) -> Path:
    if not (Path(word) / RUN).is_file():
        raise ArgumentTypeError(f"there is no run in {word}")
    return Path(word)


def parser() -> Parser:
    parser = Parser("bench", WHAT, examples={"pufferfish bench svd --quick": "one of them, with fewer rounds"})
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    subjects = FURTHER | suite.SUBJECTS
    own = {
        name: commands.add_parser(name, prog=f"{parser.prog} {name}", help=words, what=words) for name, words in subjects.items()
    }
    own["beam"].add_argument("run", type=run_directory, metavar="RUN", help="a finished translation run on Multi30k")
    own["beam"].add_argument("folder", type=folder, metavar="FOLDER", help="the folder with the files of Multi30k")
    for name in ("beam", *suite.SUBJECTS):
        own[name].add_argument(
            "--rounds",
            type=at_least_one,
            default=SUPPRESS,
            help="measurements of each implementation (default: depends on the benchmark)",
        )
    for name in ("all", *suite.SUBJECTS):
        own[name].add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, into another folder")
    for command in own.values():
        command.add_argument(
            "--out",
            type=Path,
            default=None,
            metavar="DIR",
            help=f"the folder for the result (default: {OUT}; quick: {QUICK_OUT})",
        )
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = vars(parser().parse_args(words))
    name, out = given.pop("benchmark"), given.pop("out") or (QUICK_OUT if given.get("quick") else OUT)
    failed = []
    if name != "table":
        try:
            with machine_lock.held(exclusive=True):
                failed = measure(name, out, given)
        except Stop as stop:
            complain("stopped; nothing was measured")
            sys.exit(128 + stop.signal)
    if name == "beam":
        return

    from pufferfish_bench.bench import table  # imports matplotlib: not for --help

    table.render(out, console)
    if failed:
        sys.exit(1)


def measure(name: str, out: Path, given: dict[str, Any]) -> list[str]:
    """Measure a subject, all of them, or beam search. Returns the subjects that failed."""
    if name == "beam":
        measure_beam(out=out, **given)
    elif name == "all":
        return suite.measure_all(out, **given)
    else:
        suite.measure(name, out, **given)
    return []


def measure_beam(*, run: Path, **given: object) -> None:
    from pufferfish_bench.bench import beam
    from pufferfish_bench.config.restore import restored_model

    record = reader.read_run(run)
    beam.measure(model=restored_model(run, record), settings=record["settings"], **given)


if __name__ == "__main__":
    main()
