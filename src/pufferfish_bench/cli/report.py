"""The command pufferfish-report: the paper's tables next to ours, from the records, as Markdown, CSV, charts and an HTML page."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser

WHAT = "Writes the paper's tables next to ours, from the records: as Markdown, CSV, charts and an HTML page."
EXAMPLES = {
    "pufferfish-report table4": "print a table, and write the files of all",
    "pufferfish-report --profile smoke": "of the runs under another profile",
}


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    parser = Parser("report", WHAT, examples=EXAMPLES)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="tables to print (table4, figure5, ...); files are written for all"
    )
    parser.add_argument("--profile", default="cpu", help="the profile of the runs: paper, cpu or smoke (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER",
        help="holds records/; tables/, figures/ and the page are written there (default: %(default)s)",
    )  # fmt: skip
    given = parser.parse_args(words)
    from pufferfish_bench.report.reproduction import write_report  # imports matplotlib: not for --help

    write_report(given.tables, profile=given.profile, results=given.results, console=Console())


if __name__ == "__main__":
    main()
