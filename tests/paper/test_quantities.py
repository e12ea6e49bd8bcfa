"""What quantities read from a record."""

from pathlib import Path

from pufferfish_bench.paper.quantities import quantity
from pufferfish_bench.records.record import Record


def record(rows: list[dict], **summary: float) -> Record:
    return Record(Path("nowhere"), {"summary": summary}, rows)


def test_perplexities_of_the_best_epoch_are_those_of_the_epoch_that_the_summary_names():
    """The test perplexity is that of the epoch which is best on validation data, not the lowest one."""
    rows = [{"epoch": epoch, "val_ppl": val, "test_ppl": test} for epoch, (val, test) in enumerate([(9, 5), (7, 8), (8, 6)])]
    found = record(rows, best_epoch=1)
    assert [quantity(name).read(found) for name in ("best_val_ppl", "best_test_ppl")] == [7, 8]
    assert quantity("best_test_ppl").read(record(rows)) is None


def test_a_ratio_of_times_is_compared_like_a_time():
    assert quantity("communication_ratio").is_time  # on the same machine only, and not beside other processes
