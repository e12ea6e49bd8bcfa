"""The processes that train together: rank, size, device and collectives. Only this module uses torch.distributed, except for
the rendezvous (rendezvous.py) and torch's own engine (reducers/ddp.py).

Reducers decide what is sent to average gradients; everything else in a run communicates rarely.
"""

import atexit
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import gpu_builds, rendezvous
from pufferfish_bench.distributed.heartbeat import Heartbeat

ENDED = "pufferfish/end"  # key in the store, followed by the number of the run: the call of `all_stop` at which all ranks stop


class World:
    """This process and the others that train with it."""

    runs = 0
    arrivals = 0  # collectives that this process has reached: others wait for the rank with the fewest

    def __init__(self, *, rank: int, size: int, device: torch.device, store: Any = None):
        self.rank = rank
        self.size = size
        self.device = device
        self.store = store  # torchrun's key-value store: needs no collective
        self.moments = 0  # calls of `all_stop`, the same number on all ranks
        World.runs += 1  # runs of this process: a sweep has several
        self.end = f"{ENDED}{World.runs}"

    def arrive(self) -> None:
        """Count that this rank has reached a collective."""
        World.arrivals += 1

    def synchronise(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on_device(self, tensor: Tensor) -> Tensor:
        """A copy of a CPU tensor on the device, for which the host does not wait; on a CPU the tensor itself."""
        if self.device.type == "cpu":
            return tensor
        # the copy from pageable memory would make the host wait; only CUDA has pinned memory
        return (tensor.pin_memory() if self.device.type == "cuda" else tensor).to(self.device, non_blocking=True)

    def on_host(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on the CPU, for which the host waits; on a CPU the tensor itself. Not for use inside a step.

        Whatever the loop and the tasks read of the device between steps, they read through this.
        """
        return tensor.detach().cpu()

    def generator(self, seed: int) -> torch.Generator:
        """A generator of random numbers on the device."""
        return torch.Generator(self.device).manual_seed(seed)

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

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Replace each tensor by that of rank `source`."""
        if self.size > 1:
            for tensor in tensors:
                self.arrive()
                if tensor.is_contiguous():
                    dist.broadcast(tensor, source)
                else:
                    dense = tensor.contiguous()
                    dist.broadcast(dense, source)
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

    def sync_buffers(self, model: nn.Module) -> None:
        """Average running statistics over ranks, and copy all other buffers from rank 0: constants keep their bits."""
        statistics, others = [], []
        for module in model.modules():
            kept = [buffer for _, buffer in module.named_buffers(recurse=False)]
            if getattr(module, "track_running_stats", False):
                statistics += [buffer for buffer in kept if buffer.is_floating_point()]
            else:
                others += kept
        self.average(statistics)
        self.broadcast(others)

    @property
    def first_here(self) -> bool:
        """Whether this is the first rank on its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def barrier(self) -> None:
        """Wait until all ranks have reached this point."""
        if self.size > 1:
            self.arrive()
            dist.barrier()

    def broadcast_object(self, thing: Any) -> Any:
        """The object of rank 0, on all ranks."""
        if self.size == 1:
            return thing
        self.arrive()
        things = [thing]
        dist.broadcast_object_list(things, src=0, device=self.device)
        return things[0]

    def gather(self, thing: Any) -> list[Any]:
        """The objects of all ranks, on all ranks."""
        if self.size == 1:
            return [thing]
        self.arrive()
        things = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def all_stop(self, requested: bool) -> bool:
        """Whether all ranks stop here, because one of them requested it: the same answer on all ranks, without waiting.

        All ranks must call this at the same steps, and wait for each other in a collective between two calls. Then no rank is
        more than one call ahead: all ranks see a request that is stored now at the next call, and stop there.
        """
        if self.size == 1:
            return requested
        self.moments += 1
        if self.store.check([self.end]):
            return self.moments >= int(self.store.get(self.end))
        if requested:
            self.store.compare_set(self.end, "", str(self.moments + 1))
        return False

    def all_failed(self, run: int, seconds: float = 60.0) -> bool:
        """Whether all ranks report within `seconds` that this run of a sweep failed. No collective: a rank may hang in one."""
        if self.size == 1:
            return True
        here = [f"pufferfish/failed{run}/{rank}" for rank in range(self.size)]
        self.store.set(here[self.rank], "")
        try:
            self.store.wait(here, timedelta(seconds=seconds))
        except RuntimeError:  # a timeout, or the other ranks are gone
            return False
        return True


def single_process(device: str = "cpu") -> World:
    """A world of one process."""
    return World(rank=0, size=1, device=torch.device(device))


def join(device: str, *, timeout: float, warn_after: float) -> World:
    """Join the processes that torchrun started. `device` is cpu, cuda, or auto for CUDA if available.

    A rank fails after waiting `timeout` seconds for another. A warning names a rank without a heartbeat for `warn_after`
    seconds (0: no warnings). Both apply to all runs of a process.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device={device} is not known; allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda, but PyTorch sees no CUDA device here; use device=cpu or device=auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if "WORLD_SIZE" not in os.environ:
        if device == "cuda":
            gpu_builds.check(torch.device(device))
        return single_process(device)
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
                f"torchrun started at least {local + 1} processes on a machine with {torch.cuda.device_count()} GPUs: "
                f"use --nproc-per-node {torch.cuda.device_count()} or less"
            )
        here = torch.device("cuda", local)
        gpu_builds.check(here)
        torch.cuda.set_device(here)
    if not dist.is_initialized():  # the runs of a sweep share one process group
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
    store = dist.distributed_c10d._get_default_store()  # torch has no public function for this
    return World(rank=dist.get_rank(), size=dist.get_world_size(), device=here, store=store)


def lost(error: BaseException) -> bool:
    """Whether an error means that another rank is gone."""
    return (
        dist.is_initialized()
        and isinstance(error, dist.DistError | RuntimeError)
        and (
            isinstance(error, dist.DistError) or any(sign in str(error) for sign in ("gloo", "Connection", "NCCL", "Broken pipe"))
        )
    )
