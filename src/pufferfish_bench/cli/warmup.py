"""How the layers of a run changed during the warm-up or search, and when each trigger would have ended that phase.

pufferfish warmup RUN [--out FOLDER/NAME]
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser

WHAT = "Shows how the layers of a run changed during the warm-up or search, and when each trigger would have ended that phase."


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    parser = Parser("warmup", WHAT)
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--out", type=Path, metavar="FOLDER/NAME", help="write NAME.md, NAME.png and NAME.svg there")
    given = parser.parse_args(words)
    from pufferfish_bench.report import warmup  # imports torch: not for --help

    warmup.show(given.run, Console(), out=given.out)


if __name__ == "__main__":
    main()
