"""The command pufferfish-compare: runs side by side, one row each, with the settings in which they differ."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.records.finding import RUNS, directories
from pufferfish_bench.report import compare

WHAT = (
    "Shows runs side by side, one row each, with the settings in which they differ; the best value of each column is marked. "
    "Runs that are not finished are shown as of their last epoch. Without arguments: the runs in results/runs."
)
EXAMPLES = {
    "pufferfish-compare": "all runs, a table for each data set",
    "pufferfish-compare results/runs/ONE results/runs/OTHER": "these two; speed is relative to the first",
    "pufferfish-compare --plot": "also draw the metric over epochs and over seconds",
}


def parser() -> Parser:
    parser = Parser("compare", WHAT, examples=EXAMPLES)
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="the directory of a run, or a folder of runs; plain files are ignored"
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="of a folder, only the newest N (default: %(default)s)"
    )
    parser.add_argument("--plot", action="store_true", help="draw the metric over epochs and over seconds, as PNG and SVG")
    parser.add_argument(
        "--out", type=Path, default=Path("results/runs/compare"), metavar="FOLDER/NAME",
        help="the files of --plot are NAME.png and NAME.svg there (default: %(default)s)",
    )  # fmt: skip
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    if given.limit < 1:
        raise InputError(f"--limit must be at least 1, got {given.limit}")
    if not given.runs and not (RUNS.is_dir() and any(directories(RUNS))):
        raise InputError(f"there are no runs in {RUNS}; train one first, for example: pufferfish-run profile=smoke")
    groups = compare.records_of(given.runs or [RUNS], given.limit)
    compare.show(groups, Console())
    if given.plot:
        from pufferfish_bench.report import compare_charts  # matplotlib takes a second

        compare_charts.write(groups, given.out, Console())


if __name__ == "__main__":
    main()
