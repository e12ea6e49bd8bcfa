"""The command pufferfish-whatif: predicted times of measured methods with more workers or on another network."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.distributed import units
from pufferfish_bench.records import measured
from pufferfish_bench.records.measured import Link
from pufferfish_bench.report import whatif

WHAT = (
    "Predicts the times of measured methods with more workers or on another network. First it predicts every measured run, from "
    "itself and from runs under other conditions, to show how accurate the model is."
)
EXAMPLES = {
    "pufferfish-whatif results/runs/VANILLA results/runs/PUFFERFISH": "measured with torchrun, or in the network lab",
    "pufferfish-whatif a=DIR b=DIR --bandwidth 1gbit --workers 8,64": "with labels of your own",
}


def parser() -> Parser:
    parser = Parser("whatif", WHAT, examples=EXAMPLES)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN",
        help="the directory of a measured run, or LABEL=DIRECTORY; predictions are made from the first run of each method",
    )  # fmt: skip
    parser.add_argument(
        "--workers", default="2,4,8,16,64,256,1024", metavar="N,N,...", help="numbers of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--bandwidth", default="10gbit", help="bandwidth of each worker's link (default: %(default)s, as in the paper)"
    )
    parser.add_argument("--latency", default="50us", help="latency of a message (default: %(default)s)")
    parser.add_argument("--samples", type=int, metavar="N", help="samples per epoch (default: as in the runs)")
    parser.add_argument(
        "--at", type=int, default=16, metavar="N", help="number of workers in the bandwidth chart (default: %(default)s)"
    )
    parser.add_argument("--note", default="", help="a remark for the reader, printed with the tables and charts")
    parser.add_argument("--phase", help="the phase to predict from (default: the last phase of each run)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER/NAME", help="write tables and charts there, with names that begin with NAME"
    )
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    for option in ("samples", "at"):
        if (value := getattr(given, option)) is not None and value < 1:
            raise InputError(f"--{option} must be at least 1, got {value}")
    link = Link(units.seconds(given.latency), units.bandwidth(given.bandwidth))
    workers = units.counts(given.workers)
    runs = measured.read(given.runs, phase=given.phase)
    forecast = whatif.forecast(runs, workers=workers, link=link, samples=given.samples, note=given.note)
    whatif.show(forecast, Console())
    if given.out:
        whatif.write(forecast, given.out, Console(), at=given.at)


if __name__ == "__main__":
    main()
