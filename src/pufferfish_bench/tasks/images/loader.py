"""Loading crops of pictures: worker processes decode and crop whole batches ahead of the training."""

import logging
import signal
import sys
from collections.abc import Generator, Iterator
from functools import partial

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import sharding
from pufferfish_bench.tasks.images.crops import Crop
from pufferfish_bench.tasks.images.image_folder import Pictures, Unreadable
from pufferfish_bench.tasks.images.task import Batch, Source

NAMED_FILES = 10  # unreadable files that are logged by name; further ones are only counted
GRACE = 600  # seconds that a worker lives on after a SIGTERM: schedulers kill it long before

log = logging.getLogger(__name__)

Request = tuple[int, numpy.ndarray, numpy.ndarray]  # slot to fill, indices of the pictures, a row of random numbers for each
Answer = tuple[int, Tensor, dict[str, str]]  # slot, labels, and the unreadable files with the reason


class CropDataset(Dataset):
    """Crops a whole batch of pictures into one of the slots of shared memory. Each worker process holds a copy of this."""

    def __init__(self, pictures: Pictures, crop: Crop, slots: Tensor):
        self.pictures = pictures
        self.crop = crop
        self.slots = slots

    def __getitem__(self, request: Request) -> Answer:
        slot, indices, drawn = request
        labels, unreadable = [], {}
        for index, numbers in zip(indices.tolist(), drawn.tolist(), strict=True):
            try:
                pixels, cut = self.pictures.pixels(index, partial(self.crop.cut, drawn=numbers))
            except Unreadable as error:
                unreadable[self.pictures.paths[index]] = str(error)
                continue
            self.slots[slot, len(labels)] = self.crop.square(pixels, cut)
            labels.append(self.pictures.labels[index])
        return slot, torch.tensor(labels, dtype=torch.int64), unreadable


class Loader(Source):
    """Crops of pictures, prepared `prefetch` batches ahead by each of `workers` processes, or in this process if workers is 0.

    Workers write into shared memory that is reused: sending each batch in new memory would cost as much as preparing it.
    Unreadable pictures are logged and left out of their batch; a share of more than `tolerated` of all pictures is an error.
    """

    def __init__(
        self,
        pictures: Pictures,
        crop: Crop,
        *,
        batch_size: int,
        seed: int | None,  # of the shuffling and the crops; None: in order, for evaluation
        workers: int,
        prefetch: int,
        tolerated: float,
        world: World,
    ):
        self.pictures = pictures
        self.crop = crop
        self.batch_size = batch_size
        self.seed = seed
        self.workers = workers
        self.prefetch = prefetch
        self.tolerated = tolerated
        self.world = world
        self.unreadable: dict[str, str] = {}
        # one slot more than batches in preparation, for the batch in use
        slots = torch.empty(workers * prefetch + 1, batch_size, crop.size, crop.size, 3, dtype=torch.uint8)
        if workers:
            move_to_shared_memory(slots)
        self.slots = slots.permute(0, 1, 4, 2, 3)  # channels-last in memory, as pictures are decoded
        count = len(pictures)
        if seed is not None:
            self.slices = sharding.training_batches(count, batch_size, rank=world.rank, size=world.size)
        else:
            part = sharding.evaluation_range(count, rank=world.rank, size=world.size)
            starts = range(part.start, part.stop, batch_size)
            self.slices = [slice(start, min(start + batch_size, part.stop)) for start in starts]
        self.current_epoch: Generator[Batch] = (batch for batch in ())

    def steps(self) -> int:
        return len(self.slices)

    def count(self) -> int:
        return sharding.samples_in(self.slices)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        self.current_epoch.close()  # or its workers would continue to write into the slots
        self.current_epoch = self.serve(list(self.requests(epoch, start)))
        return self.current_epoch

    def serve(self, requests: list[Request]) -> Generator[Batch]:
        loader = DataLoader(
            CropDataset(self.pictures, self.crop, self.slots),
            batch_size=None,  # a request is a whole batch
            sampler=requests,
            num_workers=self.workers,
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,  # shares the cached pictures
            prefetch_factor=self.prefetch if self.workers else None,
            worker_init_fn=survive_signals,
            generator=torch.Generator(),  # or it would draw from the global generator
        )
        for slot, labels, unreadable in answers(loader):
            self.report_unreadable(unreadable)
            if len(labels):
                yield self.world.on_device(self.slots[slot, : len(labels)]), self.world.on_device(labels)
            elif self.seed is not None:  # evaluation can skip an empty batch, a training step cannot
                raise InputError(
                    f"no picture of a batch can be read: {', '.join(list(unreadable)[:3])}; repair the files or use a larger "
                    "batch_size"
                )
        if len(self.unreadable) > NAMED_FILES:
            log.warning(f"{len(self.unreadable)} unreadable pictures so far")

    def requests(self, epoch: int, start: int) -> Iterator[Request]:
        """A request for each batch of an epoch, starting with batch `start`.

        The random numbers of the whole epoch are drawn at once, so that it can be resumed at any step.
        """
        count = len(self.pictures)
        random = numpy.random.default_rng((self.seed or 0, epoch))
        order = numpy.arange(count) if self.seed is None else random.permutation(count)
        drawn = random.random((count, self.crop.numbers), dtype=numpy.float32)
        for step, batch in enumerate(self.slices[start:], start):
            yield step % len(self.slots), order[batch], drawn[batch]

    def report_unreadable(self, unreadable: dict[str, str]) -> None:
        """Log unreadable files, the first few by name, and raise an error if there are too many."""
        for path, reason in unreadable.items():
            if path in self.unreadable:
                continue
            self.unreadable[path] = reason
            if len(self.unreadable) <= NAMED_FILES:
                log.warning(f"{path} cannot be read and is left out: {reason}")
            elif len(self.unreadable) == NAMED_FILES + 1:
                log.warning(f"more than {NAMED_FILES} pictures cannot be read; further ones are only counted")
        count, total = len(self.unreadable), len(self.pictures)
        if count > self.tolerated * total:
            examples = ", ".join(list(self.unreadable)[:3])
            raise InputError(
                f"{count} of {total:,} pictures cannot be read, a larger share than dataset.loader.tolerated_unreadable="
                f"{self.tolerated:g}: {examples}{' ...' if count > 3 else ''}"
            )


def move_to_shared_memory(tensor: Tensor) -> None:
    size = tensor.numel() * tensor.element_size()
    try:
        tensor.share_memory_()
    except RuntimeError as error:
        raise InputError(
            f"{size / 2**20:,.0f} MiB of shared memory cannot be allocated ({error}); use a smaller dataset.loader.workers, "
            "dataset.loader.prefetch or batch_size, or give the container more (docker run --shm-size)"
        ) from None


def answers(loader: DataLoader) -> Iterator[Answer]:
    """The answers of the workers; InputError if a worker process dies."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise InputError(
            f"a worker process of the data loader died ({error}); if memory or shared memory was full, use a smaller "
            "dataset.loader.workers or dataset.loader.prefetch"
        ) from error


def survive_signals(worker: int) -> None:
    """Keep a worker alive after Ctrl-C, SIGTERM or SIGUSR1, which reach every process of a run: the last step needs its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: signal.alarm(GRACE))
