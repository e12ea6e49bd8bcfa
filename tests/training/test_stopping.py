"""Ranks stop at the same step even when devices lag behind their hosts. No GPU is needed: threads play the ranks."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pufferfish_bench.distributed.world import World
from pufferfish_bench.trainer import CHECK_EVERY, Trainer

EPOCHS, STEPS = 3, CHECK_EVERY + 10
NEVER = EPOCHS * STEPS + 1


class Collectives:
    """Collectives queued on the ranks' devices: each completes when all ranks have queued it."""

    def __init__(self, ranks: int):
        self.asked = [0] * ranks
        self.awaited = [0] * ranks  # how many a rank waits for
        self.over = [False] * ranks
        self.changed = threading.Condition()

    def ask(self, rank: int) -> None:
        with self.changed:
            self.asked[rank] += 1
            self.changed.notify_all()

    def wait(self, rank: int) -> None:
        """Wait until all collectives that a rank has queued are complete, or another rank has left."""
        with self.changed:
            self.awaited[rank] = self.asked[rank]
            self.changed.notify_all()
            self.changed.wait_for(lambda: min(self.asked) >= self.awaited[rank] or any(self.over))

    def leave(self, rank: int) -> None:
        with self.changed:
            self.over[rank] = True
            self.changed.notify_all()

    def let_run_ahead(self, rank: int) -> None:
        """Return when a rank cannot proceed without the others."""
        with self.changed:
            self.changed.wait_for(lambda: self.over[rank] or self.awaited[rank] > min(self.asked))


class Imitated(World):
    """A rank on a simulated GPU, which its host does not wait for."""

    def __init__(self, collectives: Collectives, **where: object):
        super().__init__(device=torch.device("cuda"), **where)
        self.end = "end"
        self.collectives = collectives

    def synchronise(self) -> None:
        self.collectives.wait(self.rank)


def stopped_at(*, slow: int, wish_from: int, synchronous: bool) -> list[tuple[int, int] | None]:
    """Where each of two ranks stops if the slow one requests it from a given step on; the other runs ahead as far as it can."""
    collectives, store, places = Collectives(2), dist.HashStore(), [None, None]

    def rank(number: int) -> None:
        world = Imitated(collectives, rank=number, size=2, store=store)
        done = 0
        trainer = SimpleNamespace(stop_requested=lambda: number == slow and done >= wish_from)
        for epoch in range(EPOCHS):
            for step in range(1, STEPS + 1):
                if synchronous:
                    collectives.ask(number)
                run = SimpleNamespace(world=world, step=step, reducer=SimpleNamespace(synchronous=synchronous))
                done += 1
                if number == slow:
                    collectives.let_run_ahead(1 - slow)
                if Trainer.should_stop(trainer, run, STEPS):
                    places[number] = (epoch, step)
                    return collectives.leave(number)
            collectives.ask(number)  # the mean loss of the epoch, which the host reads
            collectives.wait(number)
        collectives.leave(number)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_ranks_stop_at_the_same_step_however_far_a_host_runs_ahead(epoch: int, slow: int, synchronous: bool):
    for step in (1, CHECK_EVERY, CHECK_EVERY + 1, STEPS):
        first, second = stopped_at(slow=slow, wish_from=epoch * STEPS + step, synchronous=synchronous)
        assert first == second
        assert first is not None or epoch == EPOCHS - 1  # the last epoch may end before all ranks know
        assert synchronous or first is None or first[1] == STEPS


def test_ranks_do_not_stop_without_a_request():
    assert stopped_at(slow=1, wish_from=NEVER, synchronous=True) == [None, None]
