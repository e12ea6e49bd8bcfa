"""Classify images that fit in memory: held as uint8 on the device, augmented a batch at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pufferfish_bench.core import Task
from pufferfish_bench.errors import InputError

PADDING = 4  # pixels that a crop may reach over each edge


class Images(Task):
    """Image classification with the paper's CIFAR augmentation: a random crop of the reflect-padded image, and a flip."""

    metric = "test_accuracy"
    higher_is_better = True

    def __init__(
        self,
        *,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        test_batch_size: int,
        seed: int,
        device: torch.device,
    ):
        for name, size in (("batch_size", batch_size), ("dataset.test_batch_size", test_batch_size)):
            if size < 1:
                raise InputError(f"{name}={size} must be at least 1")
        found = int(max(train[1].max(), test[1].max())) + 1
        if found > classes:
            raise InputError(f"dataset.classes={classes}, but the data has {found} classes")
        self.train_images, self.train_labels = (tensor.to(device) for tensor in train)
        self.test_images, self.test_labels = (tensor.to(device) for tensor in test)
        # (pixel - mean) / std with pixels in 0..255, as one multiplication and one addition
        self.scale = (1 / (255 * torch.tensor(std))).view(1, -1, 1, 1).to(device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).view(1, -1, 1, 1).to(device)
        self.batch_size = batch_size
        self.test_batch_size = test_batch_size
        self.seed = seed

    def steps(self, epoch: int) -> int:
        return -(-len(self.train_labels) // self.batch_size)

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = shuffle_and_moves(len(self.train_labels), seed=self.seed, epoch=epoch)
        order, *moves = (numbers.to(self.train_labels.device) for numbers in drawn)  # at once: no step waits for a copy
        for first in range(start * self.batch_size, len(order), self.batch_size):
            batch = slice(first, first + self.batch_size)
            chosen = order[batch]
            images = augment(self.train_images[chosen], *(move[batch] for move in moves))
            yield self.normalise(images), self.train_labels[chosen]

    def loss(self, model: Callable[..., Tensor], batch: Any) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        loss, correct = 0.0, 0
        batches = zip(self.test_images.split(self.test_batch_size), self.test_labels.split(self.test_batch_size), strict=True)
        for images, labels in batches:
            logits = model(self.normalise(images)).float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double()
            correct += (logits.argmax(1) == labels).sum()
        count = len(self.test_labels)
        return {"test_loss": float(loss) / count, "test_accuracy": 100 * int(correct) / count}

    def example(self) -> tuple[Tensor, ...]:
        return (self.normalise(self.test_images[:1]),)

    def normalise(self, images: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images.float(), self.scale)


def shuffle_and_moves(count: int, *, seed: int, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The order of an epoch and, for each place in it, the crop's row and column and whether to flip: drawn all at once,
    so that an epoch can be entered anywhere."""
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    order = torch.randperm(count, generator=generator)
    rows, columns = torch.randint(2 * PADDING + 1, (2, count), generator=generator)
    flips = torch.randint(2, (count,), generator=generator).bool()
    return order, rows, columns, flips


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
    """Crop each reflect-padded image at (row, column) and mirror it where `flips` says so, in one gather."""
    count, channels, height, width = images.shape
    row = reflected(height, rows)
    column = reflected(width, columns)
    column = torch.where(flips[:, None], column.flip(1), column)
    pixel = (row[:, :, None] * width + column[:, None, :]).view(count, 1, -1)
    return images.flatten(2).gather(2, pixel.expand(-1, channels, -1)).view_as(images)


def reflected(size: int, offsets: Tensor) -> Tensor:
    """For each offset the source positions of a crop of `size` from a row padded by reflection."""
    position = torch.arange(size, device=offsets.device) + offsets[:, None] - PADDING
    position = position.abs()
    return torch.where(position >= size, 2 * (size - 1) - position, position)
