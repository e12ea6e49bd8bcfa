"""Where the time of a step goes, run by run: tables, CSV, Markdown and the stacked bars of the paper's Figure 4 (b).

pufferfish breakdown RUN [RUN ...] [--out FOLDER/NAME]
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.records import measured
from pufferfish_bench.report import breakdown

WHAT = "Shows where the time of a step goes, run by run: tables, CSV, Markdown and the stacked bars of the paper's Figure 4 (b)."


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    parser = Parser("breakdown", WHAT)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the directory of a run, or LABEL=DIRECTORY")
    parser.add_argument("--phase", help="the phase to show (default: the last phase of each run)")
    parser.add_argument("--out", type=Path, metavar="FOLDER/NAME", help="write NAME.csv, NAME.md, NAME.png and NAME.svg there")
    given = parser.parse_args(words)
    runs = measured.read(given.runs, phase=given.phase)
    breakdown.show(runs, Console())
    if given.out:
        breakdown.write(runs, given.out, Console())


if __name__ == "__main__":
    main()
