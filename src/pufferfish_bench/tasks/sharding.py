"""How samples are divided among ranks: pure functions of the number of samples and the number of ranks."""

import itertools

from pufferfish_bench.base.errors import InputError


def training_batches(count: int, batch_size: int, *, rank: int, size: int) -> list[slice]:
    """The batches of one rank, one per step, as slices of an epoch's shuffled order.

    Each step takes the next `size * batch_size` samples and gives every rank an equal share. So all ranks have the same number
    of steps and samples, no sample is used twice, and at most the last `size - 1` samples of the order are left out.
    """
    if count < size:
        raise InputError(f"{count} samples are too few for {size} ranks: use more samples or fewer ranks")
    usable, per_step = count - count % size, batch_size * size
    batches = []
    for first in range(0, usable, per_step):
        share = min(per_step, usable - first) // size
        batches.append(slice(first + rank * share, first + (rank + 1) * share))
    return batches


def parts_of(count: int, parts: int) -> list[slice]:
    """`count` samples as `parts` slices of nearly equal length, none of them empty: fewer slices if there are fewer samples."""
    parts = max(1, min(parts, count))
    ends = [number * count // parts for number in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(ends)]


def samples_in(batches: list[slice]) -> int:
    """The total number of samples in these batches."""
    return sum(batch.stop - batch.start for batch in batches)


def evaluation_range(count: int, *, rank: int, size: int) -> range:
    """The samples that one rank evaluates: each sample is evaluated by exactly one rank."""
    return range(rank * count // size, (rank + 1) * count // size)
