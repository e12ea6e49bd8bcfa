"""Who gets which samples: nobody twice, everybody as many, and together what one would have had."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import sharding
from tests.support.nets import tiny_task

counts = st.integers(1, 200)
sizes = st.integers(1, 7)


@given(counts, st.integers(1, 30), sizes)
def test_all_ranks_have_equal_batches_and_no_sample_is_anywhere_twice(count: int, batch_size: int, size: int):
    if count < size:
        with pytest.raises(InputError, match=f"{count} samples are too few for {size} ranks"):
            sharding.training_batches(count, batch_size, rank=0, size=size)
        return
    parts = [sharding.training_batches(count, batch_size, rank=rank, size=size) for rank in range(size)]
    ranks = [[range(count)[batch] for batch in part] for part in parts]
    assert all([len(batch) for batch in batches] == [len(batch) for batch in ranks[0]] for batches in ranks)
    assert all(1 <= len(batch) <= batch_size for batches in ranks for batch in batches)
    seen = [place for batches in ranks for batch in batches for place in batch]
    assert len(seen) == len(set(seen)) == count - count % size


@given(counts, st.integers(1, 30), sizes)
def test_the_batches_of_all_ranks_together_are_those_of_one_rank_with_a_larger_batch(count: int, batch_size: int, size: int):
    count = max(count, size)
    ranks = [sharding.training_batches(count, batch_size, rank=rank, size=size) for rank in range(size)]
    joined = [sorted(place for part in step for place in range(count)[part]) for step in zip(*ranks, strict=True)]
    alone = sharding.training_batches(count - count % size, batch_size * size, rank=0, size=1)
    assert joined == [list(range(count)[batch]) for batch in alone]


@given(st.integers(0, 200), sizes)
def test_every_test_sample_is_evaluated_once(count: int, size: int):
    parts = [sharding.evaluation_range(count, rank=rank, size=size) for rank in range(size)]
    assert [place for part in parts for place in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_two_ranks_crop_and_flip_the_images_as_one_rank_does():
    device = torch.device("cpu")
    whole = tiny_task(world=World(rank=0, size=1, device=device), images=48, batch_size=8)
    parts = [tiny_task(world=World(rank=rank, size=2, device=device), images=48, batch_size=4) for rank in (0, 1)]
    assert whole.steps(0) == parts[0].steps(0) == parts[1].steps(0)
    for (images, labels), *halves in zip(whole.batches(3, 0), *(part.batches(3, 0) for part in parts), strict=True):
        assert torch.equal(images, torch.cat([half[0] for half in halves]))
        assert torch.equal(labels, torch.cat([half[1] for half in halves]))


@given(count=st.integers(1, 300), parts=st.integers(0, 40))
def test_parts_are_consecutive_not_empty_and_nearly_equal(count: int, parts: int):
    found = [range(count)[part] for part in sharding.parts_of(count, parts)]
    assert [number for part in found for number in part] == list(range(count))
    assert len(found) == max(1, min(parts, count))
    assert max(map(len, found)) - min(map(len, found)) <= 1
