"""Beam search over many sentences at once against one by one, with the model of a finished run, on Multi30k's test sentences.

Each turn translates a fifth of them, short and long sentences alike; all turns together translate each sentence twice.
"""

import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from pufferfish_bench.bench import interleaved
from pufferfish_bench.report import tables
from pufferfish_bench.tasks.translation import multi30k
from pufferfish_bench.tasks.translation.beam_search import translate
from pufferfish_bench.tasks.translation.corpus import END, PAD, START

PARTS, PASSES = 5, 2  # turns for all sentences; how often each sentence is translated
ROUNDS = PASSES * PARTS - 1  # besides the first round, which is not counted


def measure(
    *,
    model: nn.Module,
    settings: Mapping[str, Any],
    folder: Path,
    out: Path,
    rounds: int = ROUNDS,
    batch_size: int = 100,
    parts: int = PARTS,
) -> None:
    """Print the table and write the numbers to `out`; `batch_size` is how many sentences are translated at once.

    `model` and `settings` are those of a finished translation run; `folder` holds the files of Multi30k.
    """
    dataset = settings["dataset"]
    sources = multi30k.read_corpus(folder, vocabulary=dataset["vocabulary"], longest=dataset["longest"], cache=None).test.source
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
    conditions = {"run": settings["name"], "sentences": len(sources), "parts": parts, "batch_size": batch_size, **search}
    interleaved.write(out / "beam.json", {"settings": conditions, "same": same, "seconds": taken, "times_as_fast": gain})
