"""Where ranks stop, when the device of one runs behind its host. There is no GPU here: threads are the ranks, and imitate it."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pufferfish_bench.trainer import CHECK_EVERY, Trainer
from pufferfish_bench.world import World

EPOCHS, STEPS = 3, CHECK_EVERY + 10
NEVER = EPOCHS * STEPS + 1


class Collectives:
    """Those that the ranks have asked their devices for: one is done when all ranks have asked for it."""

    def __init__(self, ranks: int):
        self.asked = [0] * ranks
        self.awaited = [0] * ranks  # what a rank waits for
        self.over = [False] * ranks
        self.changed = threading.Condition()

    def ask(self, rank: int) -> None:
        with self.changed:
            self.asked[rank] += 1
            self.changed.notify_all()

    def wait(self, rank: int) -> None:
        """Until all is done that a rank has asked for, or another rank has left."""
        with self.changed:
            self.awaited[rank] = self.asked[rank]
            self.changed.notify_all()
            self.changed.wait_for(lambda: min(self.asked) >= self.awaited[rank] or any(self.over))

    def leave(self, rank: int) -> None:
        with self.changed:
            self.over[rank] = True
            self.changed.notify_all()

    def let_run_ahead(self, rank: int) -> None:
        """Return when a rank can do no more without the others."""
        with self.changed:
            self.changed.wait_for(lambda: self.over[rank] or self.awaited[rank] > min(self.asked))


class Imitated(World):
    """A rank on a GPU whose host does not wait for it."""

    def __init__(self, collectives: Collectives, **where: object):
        super().__init__(device=torch.device("cuda"), **where)
        self.end = "end"
        self.collectives = collectives

    def synchronise(self) -> None:
        self.collectives.wait(self.rank)


def stopped_at(*, slow: int, wish_from: int, in_step: bool) -> list[tuple[int, int] | None]:
    """Where each of two ranks stops, if the slow one wishes it from a step on; the other is always as far ahead as it can be."""
    collectives, store, places = Collectives(2), dist.HashStore(), [None, None]

    def rank(number: int) -> None:
        world = Imitated(collectives, rank=number, size=2, store=store)
        done = 0
        trainer = SimpleNamespace(stop_requested=lambda: number == slow and done >= wish_from)
        for epoch in range(EPOCHS):
            for step in range(1, STEPS + 1):
                if in_step:
                    collectives.ask(number)
                run = SimpleNamespace(world=world, step=step, reducer=SimpleNamespace(in_step=in_step))
                done += 1
                if number == slow:
                    collectives.let_run_ahead(1 - slow)
                if Trainer.time_to_stop(trainer, run, STEPS):
                    places[number] = (epoch, step)
                    return collectives.leave(number)
            collectives.ask(number)  # the mean loss of the epoch, which is looked at
            collectives.wait(number)
        collectives.leave(number)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_ranks_stop_at_the_same_step_however_far_a_host_runs_ahead(epoch: int, slow: int, in_step: bool):
    for step in (1, CHECK_EVERY, CHECK_EVERY + 1, STEPS):
        first, second = stopped_at(slow=slow, wish_from=epoch * STEPS + step, in_step=in_step)
        assert first == second
        assert first is not None or epoch == EPOCHS - 1  # the last epoch may be over before all know
        assert in_step or first is None or first[1] == STEPS


def test_ranks_that_nobody_asks_to_stop_do_not():
    assert stopped_at(slow=1, wish_from=NEVER, in_step=True) == [None, None]
