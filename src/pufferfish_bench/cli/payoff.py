"""Does one run pay against another? Both runs quantity by quantity with the ratio, one sentence, and a picture of both over time.

python -m pufferfish_bench.cli.payoff results/runs/demo/vanilla results/runs/demo/pufferfish --out results/runs/demo/payoff
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import payoff


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pufferfish_bench.cli.payoff", description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path, help="the directory of a finished run")
    parser.add_argument("second", type=Path, help="the directory of the run that is compared with it")
    parser.add_argument("--out", type=Path, metavar="FOLDER/NAME", help="write NAME.png and NAME.svg there")
    given = parser.parse_args(words)
    payoff.show(Record.read(given.first), Record.read(given.second), Console())


if __name__ == "__main__":
    main()
