"""Beam search of many sentences at once against one by one, with the model of a finished run, on Multi30k's test sentences.

python -m pufferfish_bench.bench.beam RUN FOLDER     FOLDER holds Multi30k's files
"""

import sys
import time
from pathlib import Path

from rich.console import Console

from pufferfish_bench.bench import interleaved
from pufferfish_bench.decoding import translate
from pufferfish_bench.records import RUN, read_json
from pufferfish_bench.report import tables
from pufferfish_bench.tasks import multi30k
from pufferfish_bench.tasks.pairs import END, PAD, START
from pufferfish_bench.translate import restored

BATCH = 100  # sentences


def main(directory: Path, folder: Path) -> None:
    record = read_json(directory / RUN)
    dataset = record["settings"]["dataset"]
    sources = multi30k.corpus(folder, vocabulary=dataset["vocabulary"], longest=dataset["longest"], cache=None).test.source
    model = restored(directory, record)
    search = {key: dataset[key] for key in ("beam", "alpha", "longest")}
    said, seconds = {}, {}
    for batch_size in (BATCH, 1):
        start = time.perf_counter()
        said[batch_size] = translate(model, sources, padding=PAD, start=START, end=END, batch_size=batch_size, **search)
        seconds[batch_size] = time.perf_counter() - start
    same = sum(list(one) == list(other) for one, other in zip(said[BATCH], said[1], strict=True))
    gain = seconds[1] / seconds[BATCH]
    table = tables.table(
        "sentences at once", "seconds", "times as fast", title=f"{len(sources):,} sentences, beam {search['beam']}"
    )
    for batch_size in (1, BATCH):
        table.add_row(str(batch_size), f"{seconds[batch_size]:.1f}", f"{seconds[1] / seconds[batch_size]:.2f}")
    tables.show(table, Console())
    Console().print(f"{same} of {len(sources)} translations are the same word for word", highlight=False)
    figures = {"sentences": len(sources), "same": same, "seconds": {str(size): taken for size, taken in seconds.items()}}
    settings = {"run": record["settings"]["name"], "batch_size": BATCH, **search}
    interleaved.write(Path("results/bench/beam.json"), {"settings": settings, **figures, "times_as_fast": gain})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
