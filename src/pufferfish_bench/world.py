"""The processes that train together: rank, size, device and what they say to each other. All of torch.distributed is here,
but for how ranks meet (rendezvous.py) and the engine that is torch's own (reducers/ddp.py).

What each rank sends to average gradients is the business of the reducers; the rest of a run speaks seldom.
"""

import atexit
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pufferfish_bench import rendezvous
from pufferfish_bench.errors import InputError
from pufferfish_bench.heartbeat import Heartbeat

ENDED = "pufferfish/end"  # in the store, with the number of the run: the moment at which all ranks stop


class World:
    """This process among those that train together."""

    runs = 0
    arrivals = 0  # of this process at collectives: a rank with fewer than another is waited for

    def __init__(self, *, rank: int, size: int, device: torch.device, store: Any = None):
        self.rank = rank
        self.size = size
        self.device = device
        self.store = store  # what ranks can write to and look up without waiting for each other; torchrun brings it
        self.moments = 0  # at which `all_stop` was asked, the same number on all ranks
        World.runs += 1  # of this process: a sweep has several
        self.end = f"{ENDED}{World.runs}"

    def arrive(self) -> None:
        """This rank has come to a collective."""
        World.arrivals += 1

    def synchronise(self) -> None:
        """Return once the device has done all it was asked to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def allreduce(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks."""
        if self.size > 1:
            self.arrive()
            dist.all_reduce(tensor)

    def allgather(self, tensor: Tensor) -> Tensor:
        """(ranks, *shape): the tensors of all ranks."""
        gathered = tensor.new_empty(self.size, *tensor.shape)
        if self.size > 1:
            self.arrive()
            dist.all_gather_single(gathered.flatten(), tensor.flatten())
            return gathered
        return gathered.copy_(tensor[None])

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                self.arrive()
                if tensor.is_contiguous():
                    dist.broadcast(tensor, 0)
                else:
                    dense = tensor.contiguous()
                    dist.broadcast(dense, 0)
                    tensor.copy_(dense)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over all ranks, all in one message."""
        tensors = list(tensors)
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.allreduce(flat)
        flat /= self.size
        for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    @property
    def first_here(self) -> bool:
        """Whether this is the first rank on its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def barrier(self) -> None:
        """Return once all ranks are here."""
        if self.size > 1:
            self.arrive()
            dist.barrier()

    def share(self, thing: Any) -> Any:
        """What rank 0 has, on all ranks."""
        if self.size == 1:
            return thing
        self.arrive()
        things = [thing]
        dist.broadcast_object_list(things, src=0, device=self.device)
        return things[0]

    def gather(self, thing: Any) -> list[Any]:
        """What each rank has, on all ranks."""
        if self.size == 1:
            return [thing]
        self.arrive()
        things = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def all_stop(self, wish: bool) -> bool:
        """Whether all ranks stop here, because one of them wished it: the same answer on all ranks, without waiting.

        Asked on all ranks at the same moments, between two of which there is a collective that every rank has waited for: no
        rank is more than a moment ahead. So a wish that is written down now is seen by all at the next moment at the latest,
        and that is where they stop.
        """
        if self.size == 1:
            return wish
        self.moments += 1
        if self.store.check([self.end]):
            return self.moments >= int(self.store.get(self.end))
        if wish:
            self.store.compare_set(self.end, "", str(self.moments + 1))
        return False

    def all_failed(self, run: int, seconds: float = 60.0) -> bool:
        """Whether all ranks come to this question of the same run of a sweep in this time. No collective: some may be in one."""
        if self.size == 1:
            return True
        here = [f"pufferfish/failed{run}/{rank}" for rank in range(self.size)]
        self.store.set(here[self.rank], "")
        try:
            self.store.wait(here, timedelta(seconds=seconds))
        except RuntimeError:  # torch's way to say that time is up, or that the others are gone
            return False
        return True


def alone(device: str = "cpu") -> World:
    """A process that trains by itself."""
    return World(rank=0, size=1, device=torch.device(device))


def join(device: str, *, timeout: float, warn_after: float) -> World:
    """The world this process was started in, on `device`: cpu, cuda, or auto for CUDA where there is one.

    A rank gives up after it has waited `timeout` seconds for another; one that has been silent for `warn_after` is named in a
    warning (0: never). Both hold for all runs of a process.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={device} is not known; allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda, but PyTorch sees no CUDA device here; use device=cpu or device=auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if "WORLD_SIZE" not in os.environ:
        return alone(device)
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT", *(["LOCAL_RANK"] if device == "cuda" else []))
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE is set, but not {', '.join(missing)}: start several processes with torchrun, or unset WORLD_SIZE for one"
        )
    here = torch.device(device)
    if device == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise InputError(
                f"{local + 1} processes on a machine with {torch.cuda.device_count()} GPUs: use a smaller --nproc-per-node"
            )
        here = torch.device("cuda", local)
        torch.cuda.set_device(here)
    if not dist.is_initialized():  # a sweep stays together
        store, rank, size = rendezvous.meet(timeout)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout),
            device_id=here if device == "cuda" else None,
        )  # fmt: skip
        atexit.register(dist.destroy_process_group)
        if size > 1 and warn_after:
            heart = Heartbeat(store, rank=rank, size=size, warn_after=warn_after, arrivals=lambda: World.arrivals)
            heart.start()
            atexit.register(heart.stop)
    store = dist.distributed_c10d._get_default_store()  # torch has no public way to it
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=here, store=store)


def lost(error: BaseException) -> bool:
    """Whether an error says that another rank is gone."""
    return (
        dist.is_initialized()
        and isinstance(error, dist.DistError | RuntimeError)
        and (
            isinstance(error, dist.DistError) or any(sign in str(error) for sign in ("gloo", "Connection", "NCCL", "Broken pipe"))
        )
    )
