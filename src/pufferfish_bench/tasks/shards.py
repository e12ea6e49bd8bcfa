"""Which part of the data is whose: pure functions of the numbers of samples and ranks."""

from pufferfish_bench.errors import InputError


def of_batches(count: int, batch_size: int, *, rank: int, size: int) -> list[slice]:
    """The places in an epoch's order that make each batch of a rank.

    A step takes `size * batch_size` places that follow each other, and each rank an equal part of them. So all ranks have
    as many steps and as many samples, no place is taken twice, and at most `size - 1` places, the last ones, are left out.
    """
    if count < size:
        raise InputError(f"{count} samples are too few for {size} ranks")
    usable, whole = count - count % size, batch_size * size
    places = []
    for first in range(0, usable, whole):
        part = min(whole, usable - first) // size
        places.append(slice(first + rank * part, first + (rank + 1) * part))
    return places


def samples(places: list[slice]) -> int:
    """How many samples the batches at these places have in all."""
    return sum(place.stop - place.start for place in places)


def of_tests(count: int, *, rank: int, size: int) -> range:
    """The places that a rank judges a model by: all ranks together have each place once."""
    return range(rank * count // size, (rank + 1) * count // size)
