"""Beam search of many sentences at once against one by one, with the model of a finished run, on Multi30k's test sentences.

Each turn is a fifth of them: short and long ones alike, and all of them twice.

python -m pufferfish_bench.bench.beam RUN FOLDER     FOLDER holds Multi30k's files
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

from rich.console import Console

from pufferfish_bench import checked
from pufferfish_bench.bench import interleaved
from pufferfish_bench.decoding import translate
from pufferfish_bench.records import RUN
from pufferfish_bench.report import tables
from pufferfish_bench.speech import spoken_errors
from pufferfish_bench.tasks import multi30k
from pufferfish_bench.tasks.pairs import END, PAD, START
from pufferfish_bench.translate import restored

PARTS, PASSES = 5, 2  # turns that make up the whole; how often it is translated


def measure(directory: Path, folder: Path, *, out: Path, rounds: int, batch_size: int = 100, parts: int = PARTS) -> None:
    """Print the table and write the figures to `out`; `batch_size` is how many sentences are translated at once."""
    record = checked.read_run(directory)
    dataset = record["settings"]["dataset"]
    sources = multi30k.corpus(folder, vocabulary=dataset["vocabulary"], longest=dataset["longest"], cache=None).test.source
    model = restored(directory, record)
    search = {key: dataset[key] for key in ("beam", "alpha", "longest")}
    turns = [range(first, len(sources), parts) for first in range(parts)]
    said: dict[int, dict[int, list[int]]] = {1: {}, batch_size: {}}

    def turn(size: int, following: Iterator[range]) -> None:
        part = next(following)
        chosen = [sources[number] for number in part]
        found = translate(model, chosen, padding=PAD, start=START, end=END, batch_size=size, **search)
        said[size].update(zip(part, found, strict=True))

    contenders = {str(size): partial(turn, size, cycle(turns)) for size in said}
    taken = interleaved.seconds(contenders, rounds=rounds)
    same = sum(said[1][number] == words for number, words in said[batch_size].items())
    one_by_one, batched = taken.values()
    gain = interleaved.ratio(one_by_one, batched)
    table = tables.table(
        "sentences at once",
        "seconds",
        "times as fast",
        title=f"{len(sources) // parts:,} of {len(sources):,} sentences, beam {search['beam']}",
    )
    for size, seconds in taken.items():
        table.add_row(size, f"{statistics.median(seconds):.2f}", f"{interleaved.ratio(one_by_one, seconds):.2f}")
    tables.show(table, Console())
    Console().print(f"{same} of {len(said[batch_size])} translations are the same word for word", highlight=False)
    settings = {"run": record["settings"]["name"], "sentences": len(sources), "parts": parts, "batch_size": batch_size, **search}
    interleaved.write(out / "beam.json", {"settings": settings, "same": same, "seconds": taken, "times_as_fast": gain})


def main(words: Sequence[str]) -> None:
    parser = interleaved.arguments("beam", __doc__, rounds=PASSES * PARTS - 1)  # and the first round, which does not count
    parser.add_argument("directory", type=Path, metavar="RUN", help="a finished translation run on Multi30k")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="holds Multi30k's files")
    given = parser.parse_args(words)
    if not (given.directory / RUN).is_file():
        parser.error(f"there is no run in {given.directory}")
    measure(**vars(given))


if __name__ == "__main__":
    with spoken_errors():
        main(sys.argv[1:])
