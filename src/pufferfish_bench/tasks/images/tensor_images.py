"""Data sets of small images that are held on the device as one uint8 tensor, and augmented a batch at a time."""

from collections.abc import Generator, Sequence
from functools import cache

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks import sharding
from pufferfish_bench.tasks.images.task import Batch, ImageClassification, Source, check_batch_sizes

PADDING = 4  # pixels added at each edge before cropping
PADDING_MODES = ("reflect", "zero")


class TensorImages(Source):
    """This rank's share of the images, in order and without augmentation: for evaluation."""

    def __init__(self, images: Tensor, labels: Tensor, *, batch_size: int, world: World):
        part = sharding.evaluation_range(len(labels), rank=world.rank, size=world.size)
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


class AugmentedTensorImages(Source):
    """Shuffled images with the paper's CIFAR augmentation: a random crop of the padded image and a random horizontal flip.

    Every rank holds all images and takes its share of each batch.
    """

    def __init__(self, images: Tensor, labels: Tensor, *, batch_size: int, padding: str, seed: int, world: World):
        self.images = images.to(world.device).contiguous()
        self.labels = labels.to(world.device)
        self.slices = sharding.training_batches(len(labels), batch_size, rank=world.rank, size=world.size)
        self.padding = padding
        self.batch_size = batch_size
        self.seed = seed

    def steps(self) -> int:
        return len(self.slices)

    def count(self) -> int:
        return sharding.samples_in(self.slices)

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        drawn = draw_order_and_crops(len(self.labels), seed=self.seed, epoch=epoch)
        order, *crops = (numbers.to(self.labels.device) for numbers in drawn)  # copied once, so that no step waits for it
        for batch in self.slices[start:]:
            chosen = order[batch]
            yield augment(self.images, chosen, *(crop[batch] for crop in crops), padding=self.padding), self.labels[chosen]


def task_from_tensors(
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
) -> ImageClassification:
    """The classification task for images given as uint8 tensors with their labels."""
    check_batch_sizes(batch_size, test_batch_size)
    if padding not in PADDING_MODES:
        raise InputError(f"dataset.padding={padding} is not known; allowed: {', '.join(PADDING_MODES)}")
    found = int(max(train[1].max(), test[1].max())) + 1
    if found > classes:
        raise InputError(f"dataset.classes={classes}, but the data has {found} classes; use dataset.classes={found}")
    return ImageClassification(
        train=AugmentedTensorImages(*train, batch_size=batch_size, padding=padding, seed=seed, world=world),
        test=TensorImages(*test, batch_size=test_batch_size, world=world),
        classes=classes, mean=mean, std=std, label_smoothing=label_smoothing, world=world,
    )  # fmt: skip


def draw_order_and_crops(count: int, *, seed: int, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The shuffled order of an epoch and, for each position in it, the row and column of the crop and whether to flip.

    All are drawn at once, so that an epoch can be resumed at any step.
    """
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    order = torch.randperm(count, generator=generator)
    rows, columns = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    flips = torch.randint(2, (count,), generator=generator).bool()
    return order, rows, columns, flips


def augment(images: Tensor, chosen: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, *, padding: str) -> Tensor:
    """Crop each of the chosen images, padded, at (row, column), and flip it where `flips` is true.

    First whole rows of pixels are copied, then the columns are picked: much faster than picking pixel by pixel.
    """
    _, channels, height, width = images.shape
    lines = row_table(height, channels, images.device)[rows] + (chosen * (channels * height))[:, None]
    copied = images.view(-1, width).index_select(0, lines.flatten()).view(len(chosen), -1, width)
    picked = column_table(width, images.device)[flips.long(), columns]
    crops = copied.gather(2, picked[:, None].expand(-1, copied.shape[1], -1)).view(len(chosen), channels, height, width)
    if padding == "zero":  # black out what the reflection put beyond the edges
        row, column = positions(height, rows), positions(width, columns)
        column = torch.where(flips[:, None], column.flip(1), column)
        crops *= (inside(row, height)[:, :, None] & inside(column, width)[:, None, :])[:, None]
    return crops


@cache
def row_table(height: int, channels: int, device: torch.device) -> Tensor:
    """(offsets, channels * height): the rows of an image, all channels one after the other, of which a crop consists."""
    rows = reflected(positions(height, torch.arange(2 * PADDING + 1)), height)
    return (rows[:, None, :] + height * torch.arange(channels)[:, None]).flatten(1).to(device)


@cache
def column_table(width: int, device: torch.device) -> Tensor:
    """(flipped or not, offsets, width): the columns of an image of which a crop consists."""
    columns = reflected(positions(width, torch.arange(2 * PADDING + 1)), width)
    return torch.stack([columns, columns.flip(1)]).to(device)


def positions(size: int, offsets: Tensor) -> Tensor:
    """For each offset the source positions of a crop of `size` pixels. Some lie beyond the edges."""
    return torch.arange(size, device=offsets.device) + offsets[:, None] - PADDING


def reflected(position: Tensor, size: int) -> Tensor:
    position = position.abs()
    return torch.where(position >= size, 2 * (size - 1) - position, position)


def inside(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position < size)
