"""Small images that fit in memory: held as uint8 on the device, augmented a batch at a time."""

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks import shards
from pufferfish_bench.tasks.images import Batch, Images, Source, check_batch_sizes
from pufferfish_bench.world import World

PADDING = 4  # pixels that a crop may reach over each edge
PADDINGS = ("reflect", "zero")  # what is there


class InOrder(Source):
    """This rank's part of the images, as they are."""

    def __init__(self, images: Tensor, labels: Tensor, *, batch_size: int, world: World):
        part = shards.of_tests(len(labels), rank=world.rank, size=world.size)
        self.images = images[part.start : part.stop].to(world.device)
        self.labels = labels[part.start : part.stop].to(world.device)
        self.batch_size = batch_size

    def steps(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def count(self) -> int:
        return len(self.labels)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        for first in range(start * self.batch_size, len(self.labels), self.batch_size):
            batch = slice(first, first + self.batch_size)
            yield self.images[batch], self.labels[batch]


class Augmented(Source):
    """The paper's CIFAR augmentation, in another order each epoch: a random crop of the padded image, and a flip.

    Every rank holds all images and takes its part of each batch.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, batch_size: int, padding: str, seed: int, world: World):
        self.images = images.to(world.device)
        self.labels = labels.to(world.device)
        self.places = shards.of_batches(len(labels), batch_size, rank=world.rank, size=world.size)
        self.padding = padding
        self.batch_size = batch_size
        self.seed = seed

    def steps(self) -> int:
        return len(self.places)

    def count(self) -> int:
        return shards.samples(self.places)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        drawn = shuffle_and_moves(len(self.labels), seed=self.seed, epoch=epoch)
        order, *moves = (numbers.to(self.labels.device) for numbers in drawn)  # at once: no step waits for a copy
        for batch in self.places[start:]:
            chosen = order[batch]
            crops = augment(self.images[chosen], *(move[batch] for move in moves), padding=self.padding)
            yield crops, self.labels[chosen]


def in_memory(
    *,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    label_smoothing: float,
    batch_size: int,
    test_batch_size: int,
    seed: int,
    world: World,
    padding: str = "reflect",
) -> Images:
    """The task of classifying images, given as tensors of uint8 with their labels."""
    check_batch_sizes(batch_size, test_batch_size)
    if padding not in PADDINGS:
        raise InputError(f"dataset.padding={padding} is not known; allowed: {', '.join(PADDINGS)}")
    found = int(max(train[1].max(), test[1].max())) + 1
    if found > classes:
        raise InputError(f"dataset.classes={classes}, but the data has {found} classes")
    return Images(
        train=Augmented(*train, batch_size=batch_size, padding=padding, seed=seed, world=world),
        test=InOrder(*test, batch_size=test_batch_size, world=world),
        classes=classes, mean=mean, std=std, label_smoothing=label_smoothing, world=world,
    )  # fmt: skip


def shuffle_and_moves(count: int, *, seed: int, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The order of an epoch and, for each place in it, the crop's row and column and whether to flip: drawn all at once,
    so that an epoch can be entered anywhere."""
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    order = torch.randperm(count, generator=generator)
    rows, columns = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    flips = torch.randint(2, (count,), generator=generator).bool()
    return order, rows, columns, flips


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, *, padding: str) -> Tensor:
    """Crop each padded image at (row, column) and mirror it where `flips` says so, in one gather."""
    count, channels, height, width = images.shape
    row, column = positions(height, rows), positions(width, columns)
    column = torch.where(flips[:, None], column.flip(1), column)
    pixel = (reflected(row, height)[:, :, None] * width + reflected(column, width)[:, None, :]).view(count, 1, -1)
    crops = images.flatten(2).gather(2, pixel.expand(-1, channels, -1)).view_as(images)
    if padding == "zero":  # what the reflection has put over the edges goes black
        crops *= (inside(row, height)[:, :, None] & inside(column, width)[:, None, :])[:, None]
    return crops


def positions(size: int, offsets: Tensor) -> Tensor:
    """For each offset the source positions of a crop of `size`, some of them over an edge."""
    return torch.arange(size, device=offsets.device) + offsets[:, None] - PADDING


def reflected(position: Tensor, size: int) -> Tensor:
    position = position.abs()
    return torch.where(position >= size, 2 * (size - 1) - position, position)


def inside(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position < size)
