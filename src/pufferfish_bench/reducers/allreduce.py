"""The plain mean of the gradients, as float32."""

from pufferfish_bench.core import Message, Reducer
from pufferfish_bench.distributed.world import World
from pufferfish_bench.reducers.flat import Flat
from pufferfish_bench.training.stopwatch import Stopwatch


class AllReduce(Flat):
    """One allreduce of the whole buffer."""

    def reduce(self) -> list[Message]:
        self.wait_for_all()
        sent = self.allreduce(self.gradient)
        with self.watch("decode"):
            self.gradient /= self.world.size
        return sent


def allreduce(*, measure_wait: bool, world: World, watch: Stopwatch) -> Reducer:
    """AllReduce for several ranks; a single process needs no buffer."""
    if world.size > 1:
        return AllReduce(measure_wait=measure_wait, world=world, watch=watch)
    return Reducer(world=world, watch=watch)
