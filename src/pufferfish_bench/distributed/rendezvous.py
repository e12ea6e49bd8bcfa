"""How ranks find each other, including after torchrun has restarted all of them."""

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from pufferfish_bench.base.errors import InputError

PATIENCE = 300.0  # seconds: imports from a busy disk are slow


def meet(timeout: float) -> tuple[dist.Store, int, int]:
    """A store that only the ranks of this attempt write to, this rank, and the number of ranks."""
    patience = max(timeout, PATIENCE)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=patience)))
        attempt = tell_attempt(store, size, patience) if rank == 0 else ask_attempt(store, rank)
    except dist.DistError as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InputError(
            f"the ranks did not all connect to {address} within {patience:.0f} seconds ({str(error).splitlines()[0]}); "
            "check that all machines are started and can reach this address"
        ) from error
    return dist.PrefixStore(f"pufferfish/{attempt}", store), rank, size


# torchrun --max-restarts restarts all ranks with the same store, which still holds the addresses of the ended processes. torch
# would try to connect to those and wait in vain. torchrun's restart count differs between machines, so it cannot identify an
# attempt. Instead, rank 0 chooses a name for each attempt and sends it to every rank that asks, until that rank has confirmed
# this name. Entries of an earlier attempt are never confirmed.


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
            raise InputError(f"rank {names} did not connect within {patience:.0f} seconds; check that all machines are started")
        time.sleep(0.01)
