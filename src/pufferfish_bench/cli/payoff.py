"""The command pufferfish payoff: does one run pay against another? Quantity by quantity, with ratios and one sentence."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import payoff

WHAT = "Shows whether the second of two finished runs pays: sizes, times and metric of both, the ratios, and one sentence."
EXAMPLES = {
    "pufferfish payoff results/runs/demo/vanilla results/runs/demo/pufferfish": "the two runs of make demo",
    "pufferfish payoff results/runs/ONE results/runs/OTHER --out one-other": "also draw the metric over epochs and over seconds",
}


def parser() -> Parser:
    parser = Parser("payoff", WHAT, examples=EXAMPLES)
    parser.add_argument("first", type=Path, metavar="FIRST", help="the directory of a run, for example of vanilla training")
    parser.add_argument("second", type=Path, metavar="SECOND", help="the directory of the run that is compared with it")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER/NAME",
        help="draw both runs into NAME.png and NAME.svg there, and the printed table into NAME-table.svg",
    )  # fmt: skip
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    first, second = Record.read(given.first), Record.read(given.second)
    payoff.show(first, second, Console())
    if given.out:
        from pufferfish_bench.report import compare_charts  # matplotlib takes a second

        compare_charts.write([("", [first, second])], given.out, Console())
        payoff.write(first, second, given.out.with_name(f"{given.out.name}-table.svg"), Console())


if __name__ == "__main__":
    main()
