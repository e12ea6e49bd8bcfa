"""ImageNet, or any of its classes, from the standard folders {train,val}/<wnid>/*: decoded by worker processes, ahead of need."""

import logging
import math
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, Natural, Positive, Share
from pufferfish_bench.tasks import folders, shards
from pufferfish_bench.tasks.crops import CentreCrop, Crop, RandomCrop
from pufferfish_bench.tasks.folders import DecodedPictures, Pictures, Unreadable
from pufferfish_bench.tasks.images import Batch, Images, Source, check_batch_sizes
from pufferfish_bench.world import World

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
NAMED = 10  # unreadable files told by name; those after them are only counted

GRACE = 600  # seconds that a worker goes on after a SIGTERM: schedulers kill long before that

log = logging.getLogger(__name__)

Request = tuple[int, numpy.ndarray, numpy.ndarray]  # a slot, the pictures to put there, and a row of drawn numbers for each
Answer = tuple[int, Tensor, dict[str, str]]  # the slot, the labels, and the files that could not be read, with the reason


class Squares(Dataset):
    """Pictures cut to squares, a batch at a time, each batch into one of the slots; this is what a worker process holds."""

    def __init__(self, pictures: Pictures, crop: Crop, slots: Tensor):
        self.pictures = pictures
        self.crop = crop
        self.slots = slots

    def __getitem__(self, request: Request) -> Answer:
        slot, indices, drawn = request
        labels, unreadable = [], {}
        for index, numbers in zip(indices.tolist(), drawn.tolist(), strict=True):
            try:
                pixels = self.pictures.pixels(index)
            except Unreadable as error:
                unreadable[self.pictures.paths[index]] = str(error)
                continue
            self.slots[slot, len(labels)] = self.crop(pixels, numbers)
            labels.append(self.pictures.labels[index])
        return slot, torch.tensor(labels, dtype=torch.int64), unreadable


class Loader(Source):
    """Squares of pictures, made `prefetch` batches ahead by each of `workers` processes, or here if there are none.

    Workers write into memory that they share with this process and that is used again and again: sending each batch
    in fresh memory costs as much as making it. What cannot be read is left out of its batch and told; more than
    `tolerated` of all pictures is an error.
    """

    def __init__(
        self,
        pictures: Pictures,
        crop: Crop,
        *,
        batch_size: int,
        seed: int | None,  # of the order and the crops; None: in order
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
        self.device = world.device
        self.unreadable: dict[str, str] = {}
        # one more than are being made: the batch that is being looked at
        self.slots = torch.empty(workers * prefetch + 1, batch_size, 3, crop.size, crop.size, dtype=torch.uint8)
        if workers:
            share(self.slots)
        count = len(pictures)
        if seed is not None:
            self.places = shards.of_batches(count, batch_size, rank=world.rank, size=world.size)
        else:
            part = shards.of_tests(count, rank=world.rank, size=world.size)
            starts = range(part.start, part.stop, batch_size)
            self.places = [slice(start, min(start + batch_size, part.stop)) for start in starts]
        self.under_way: Generator[Batch] = (batch for batch in ())

    def steps(self) -> int:
        return len(self.places)

    def count(self) -> int:
        return shards.samples(self.places)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        self.under_way.close()  # its workers would go on writing into the slots
        self.under_way = self.serve(list(self.requests(epoch, start)))
        return self.under_way

    def serve(self, requests: list[Request]) -> Generator[Batch]:
        loader = DataLoader(
            Squares(self.pictures, self.crop, self.slots),
            batch_size=None,  # a request is a whole batch
            sampler=requests,
            num_workers=self.workers,
            multiprocessing_context="fork" if self.workers and sys.platform == "linux" else None,  # the pictures are not copied
            prefetch_factor=self.prefetch if self.workers else None,
            worker_init_fn=outlive_the_step,
            generator=torch.Generator(),  # or it would draw from the generator of the training
        )
        for slot, labels, unreadable in while_workers_live(loader):
            self.note(unreadable)
            if len(labels):
                yield self.on_device(self.slots[slot, : len(labels)]), self.on_device(labels)
            elif self.seed is not None:  # no step without a batch; a test can do without
                raise InputError(
                    f"not one picture of a batch can be read: {', '.join(list(unreadable)[:3])}; use a larger batch_size"
                )
        if len(self.unreadable) > NAMED:
            log.warning(f"{len(self.unreadable)} pictures could not be read so far")

    def requests(self, epoch: int, start: int) -> Iterator[Request]:
        """What is in each batch of an epoch, from number `start` on. The numbers are drawn all at once, so that an epoch
        can be entered anywhere."""
        count = len(self.pictures)
        random = numpy.random.default_rng((self.seed or 0, epoch))
        order = numpy.arange(count) if self.seed is None else random.permutation(count)
        drawn = random.random((count, self.crop.numbers), dtype=numpy.float32)
        for step, batch in enumerate(self.places[start:], start):
            yield step % len(self.slots), order[batch], drawn[batch]

    def on_device(self, tensor: Tensor) -> Tensor:
        """Here, or on its way to the GPU while this process goes on."""
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def note(self, unreadable: dict[str, str]) -> None:
        """Tell of files that cannot be read, the first few by name, and give up if they are too many."""
        for path, reason in unreadable.items():
            if path in self.unreadable:
                continue
            self.unreadable[path] = reason
            if len(self.unreadable) <= NAMED:
                log.warning(f"{path} cannot be read and is left out: {reason}")
            elif len(self.unreadable) == NAMED + 1:
                log.warning(f"more than {NAMED} pictures cannot be read; further ones are counted, not named")
        count, total = len(self.unreadable), len(self.pictures)
        if count > self.tolerated * total:
            examples = ", ".join(list(self.unreadable)[:3])
            raise InputError(
                f"{count} of {total:,} pictures cannot be read, more than dataset.tolerated_unreadable={self.tolerated:g} "
                f"of them: {examples}{' ...' if count > 3 else ''}"
            )


def share(tensor: Tensor) -> None:
    """Put a tensor into memory that processes share."""
    size = tensor.numel() * tensor.element_size()
    try:
        tensor.share_memory_()
    except RuntimeError as error:
        raise InputError(
            f"{size / 2**20:,.0f} MiB of shared memory cannot be had ({error}); use a smaller dataset.workers, dataset.prefetch "
            "or batch_size, or give the container more (docker run --shm-size)"
        ) from None


def while_workers_live(loader: DataLoader) -> Iterator[Answer]:
    """The answers of all workers; the death of one is told in a sentence."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise InputError(
            f"a worker process of the data loader died ({error}); if the memory or the shared memory was full, use a smaller "
            "dataset.workers or dataset.prefetch"
        ) from error


def outlive_the_step(worker: int) -> None:
    """A Ctrl-C or a scheduler's SIGTERM reaches every process of a run; the step that it ends still needs its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(GRACE))


def imagenet(
    *,
    root: str,
    folder: str,
    classes: Count,
    image_size: Count,
    crop_area: Sequence[float],
    label_smoothing: Share,
    batch_size: Count,
    test_batch_size: Count,
    tolerated_unreadable: Share,
    max_megapixels: Positive,
    cache: bool,
    workers: Natural,
    prefetch: Count,
    seed: int,
    world: World,
) -> Images:
    """The task; `folder` below `root` holds the classes, all of ImageNet's or some."""
    check_batch_sizes(batch_size, test_batch_size)
    if not isinstance(crop_area, Sequence) or len(crop_area) != 2 or not 0 < crop_area[0] <= crop_area[1] <= 1:
        raise InputError(f"dataset.crop_area={crop_area} must be two shares: 0 < smallest <= largest <= 1")
    for name, value, least in (("image_size", image_size, 1), ("workers", workers, 0), ("prefetch", prefetch, 1)):
        if value < least:
            raise InputError(f"dataset.{name}={value} must be at least {least}")
    most = 2 * Image.MAX_IMAGE_PIXELS / 1e6 if Image.MAX_IMAGE_PIXELS else math.inf  # where Pillow itself refuses
    if not 0 < max_megapixels <= most:
        raise InputError(
            f"dataset.max_megapixels={max_megapixels} must be above 0, and at most {most:.0f}, which is Pillow's limit"
        )
    parts = folders.parts(Path(root) / folder, classes)
    if cache:
        folders.refuse_what_does_not_fit([path for paths, _ in parts for path in paths], max_megapixels)
    kind = DecodedPictures if cache else Pictures
    train, test = (kind(*part, max_megapixels=max_megapixels) for part in parts)
    ahead = {"workers": workers, "prefetch": prefetch, "tolerated": tolerated_unreadable, "world": world}
    return Images(
        train=Loader(train, RandomCrop(image_size, tuple(crop_area)), batch_size=batch_size, seed=seed, **ahead),
        test=Loader(test, CentreCrop(image_size), batch_size=test_batch_size, seed=None, **ahead),
        classes=classes, mean=MEAN, std=STD, label_smoothing=label_smoothing, top=(5,), world=world,
    )  # fmt: skip
