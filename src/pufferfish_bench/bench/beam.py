"""Beam search of many sentences at once against one by one, with the model of a finished run, on Multi30k's test sentences.

Each turn is a fifth of them: short and long ones alike, and all of them twice.

python -m pufferfish_bench.bench.beam RUN FOLDER     FOLDER holds Multi30k's files
"""

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

from rich.console import Console

from pufferfish_bench import checked
from pufferfish_bench.bench import interleaved
from pufferfish_bench.decoding import translate
from pufferfish_bench.report import tables
from pufferfish_bench.tasks import multi30k
from pufferfish_bench.tasks.pairs import END, PAD, START
from pufferfish_bench.translate import restored

BATCH, PARTS, PASSES = 100, 5, 2  # sentences at once; turns that make up the whole; how often it is translated


def main(directory: Path, folder: Path) -> None:
    record = checked.read_run(directory)
    dataset = record["settings"]["dataset"]
    sources = multi30k.corpus(folder, vocabulary=dataset["vocabulary"], longest=dataset["longest"], cache=None).test.source
    model = restored(directory, record)
    search = {key: dataset[key] for key in ("beam", "alpha", "longest")}
    parts = [range(first, len(sources), PARTS) for first in range(PARTS)]
    said: dict[int, dict[int, list[int]]] = {1: {}, BATCH: {}}

    def turn(batch_size: int, following: Iterator[range]) -> None:
        part = next(following)
        chosen = [sources[number] for number in part]
        found = translate(model, chosen, padding=PAD, start=START, end=END, batch_size=batch_size, **search)
        said[batch_size].update(zip(part, found, strict=True))

    contenders = {str(size): partial(turn, size, cycle(parts)) for size in said}
    taken = interleaved.seconds(contenders, rounds=PASSES * PARTS - 1)  # the first round does not count
    same = sum(said[1][number] == words for number, words in said[BATCH].items())
    one_by_one, batched = taken.values()
    gain = interleaved.ratio(one_by_one, batched)
    table = tables.table(
        "sentences at once",
        "seconds",
        "times as fast",
        title=f"{len(sources) // PARTS:,} of {len(sources):,} sentences, beam {search['beam']}",
    )
    for size, seconds in taken.items():
        table.add_row(size, f"{statistics.median(seconds):.2f}", f"{interleaved.ratio(one_by_one, seconds):.2f}")
    tables.show(table, Console())
    Console().print(f"{same} of {len(sources)} translations are the same word for word", highlight=False)
    settings = {"run": record["settings"]["name"], "sentences": len(sources), "parts": PARTS, "batch_size": BATCH, **search}
    interleaved.write(
        Path("results/bench/beam.json"), {"settings": settings, "same": same, "seconds": taken, "times_as_fast": gain}
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
