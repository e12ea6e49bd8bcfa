"""Benchmarks: speed ratios of implementations that are measured in turn in one process.

python -m pufferfish_bench.cli.bench lstm | compression | step | loader DIR | beam RUN FOLDER
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import RUN

OUT = Path("results/bench")
BENCHMARKS = {
    "lstm": "the low-rank LSTM layer against torch's fused one",
    "compression": "PowerSGD against torch's hook, and packing signs into bits",
    "step": "a training step of ResNet-50 and WideResNet-50-2, before and after factorisation",
    "loader": "images per second of the ImageNet loader, against torchvision's ImageFolder",
    "beam": "beam search over many sentences at once, against one by one",
}


def at_least_one(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {word}")
    return int(word)


def folder(word: str) -> Path:
    if not Path(word).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {word}")
    return Path(word)


def run_directory(word: str) -> Path:
    if not (Path(word) / RUN).is_file():
        raise argparse.ArgumentTypeError(f"there is no run in {word}")
    return Path(word)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pufferfish_bench.cli.bench", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    own = {name: commands.add_parser(name, help=words, description=words) for name, words in BENCHMARKS.items()}
    own["loader"].add_argument("folder", type=folder, metavar="DIR", help="has one folder of images per class")
    own["beam"].add_argument("run", type=run_directory, metavar="RUN", help="a finished translation run on Multi30k")
    own["beam"].add_argument("folder", type=folder, metavar="FOLDER", help="the folder with the files of Multi30k")
    for command in own.values():
        command.add_argument(
            "--rounds",
            type=at_least_one,
            default=argparse.SUPPRESS,
            help="measurements of each implementation (default: depends on the benchmark)",
        )
        command.add_argument(
            "--out", type=Path, default=OUT, metavar="DIR", help="the folder for the result (default: %(default)s)"
        )
    return parser


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = vars(parser().parse_args(words))
    benchmark = import_module(f"pufferfish_bench.bench.{given.pop('benchmark')}")  # imports torch: not for --help
    if "run" in given:
        from pufferfish_bench.config.restore import restored_model

        directory = given.pop("run")
        record = reader.read_run(directory)
        given |= {"model": restored_model(directory, record), "settings": record["settings"]}
    benchmark.measure(**given)


if __name__ == "__main__":
    main()
