"""The command pufferfish-compare: finished runs side by side, one row each, with the settings in which they differ."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import VERSION, error_messages
from pufferfish_bench.report import compare


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pufferfish-compare", description=__doc__.partition(": ")[2])
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a run; plain files are ignored")
    compare.show(parser.parse_args(words).runs, Console())


if __name__ == "__main__":
    main()
