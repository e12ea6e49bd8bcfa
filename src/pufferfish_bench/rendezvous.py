"""How ranks find each other, also when torchrun has started all of them again."""

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from pufferfish_bench.errors import InputError

PATIENCE = 300.0  # seconds: imports on a busy disk take their time


def meet(timeout: float) -> tuple[dist.Store, int, int]:
    """A store that only the ranks of this attempt write to, this rank, and the number of ranks."""
    patience = max(timeout, PATIENCE)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=patience)))
        attempt = tell_attempt(store, size, patience) if rank == 0 else ask_attempt(store, rank)
    except dist.DistError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InputError(
            f"the ranks did not meet at {address} within {patience:.0f} seconds ({str(error).splitlines()[0]}); "
            "are all machines started, and can they reach it?"
        ) from error
    return dist.PrefixStore(f"pufferfish/{attempt}", store), rank, size


# torchrun --max-restarts starts all ranks again with the store they had, in which the addresses of those that are gone still
# stand; torch takes them for the new ones' and waits in vain. Its count of restarts is not the same on all machines. So rank 0
# names each attempt, and answers every rank that asks until that has confirmed it: what an earlier attempt left is not confirmed.


def ask_attempt(store: dist.Store, rank: int) -> str:
    question = uuid.uuid4().hex
    store.set(f"pufferfish/question{rank}", question)
    attempt = store.get(f"pufferfish/answer/{question}").decode()  # waits for it
    store.set(f"pufferfish/{attempt}/confirmed{rank}", "")
    return attempt


def tell_attempt(store: dist.Store, size: int, patience: float) -> str:
    attempt, missing, end = uuid.uuid4().hex, set(range(1, size)), time.monotonic() + patience
    while True:
        missing = {rank for rank in missing if not store.check([f"pufferfish/{attempt}/confirmed{rank}"])}
        if not missing:
            return attempt
        for rank in missing:
            if store.check([f"pufferfish/question{rank}"]):
                question = store.get(f"pufferfish/question{rank}").decode()
                store.set(f"pufferfish/answer/{question}", attempt)
        if time.monotonic() > end:
            names = ", ".join(map(str, sorted(missing)))
            raise InputError(f"rank {names} did not come within {patience:.0f} seconds; are all machines started?")
        time.sleep(0.01)
