"""CIFAR-10 in torchvision's file format: checked, and downloaded on request."""

from pathlib import Path
from typing import Literal

import numpy
import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Natural, Share
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks.images import download
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.tasks.images.tensor_images import task_from_tensors

MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
STDS = {"paper": STD, "distributed": (0.2023, 0.1994, 0.2010)}  # the second is used by the authors' distributed code


def cifar10(
    *,
    root: str,
    fetch: bool,
    mirrors: list[str],
    train_images: Count | None,
    validation_images: Natural,
    classes: Count,
    label_smoothing: Share,
    padding: Literal["reflect", "zero"],
    normalisation: Literal["paper", "distributed"],
    batch_size: Count,
    test_batch_size: Count,
    seed: Natural,
    world: World,
) -> ImageClassification:
    """Classify CIFAR-10, trained on the first `train_images` images, or on all of them if that is null.

    With `validation_images`, the last ones of the training set are held out and take the place of the test set, so that a
    recipe can be tuned without it.
    """
    if normalisation not in STDS:
        raise InputError(f"dataset.normalisation={normalisation} is not known; allowed: {', '.join(STDS)}")
    train, test = read(root, mirrors if fetch else None, world)
    if validation_images:
        train, test = held_out(train, validation_images)
    if train_images is not None:
        if not 1 <= train_images <= len(train[1]):
            raise InputError(f"dataset.train_images={train_images} must be between 1 and {len(train[1])}, or null for all")
        train = train[0][:train_images], train[1][:train_images]
    task = task_from_tensors(
        train=train, test=test, classes=classes, mean=MEAN, std=STDS[normalisation], label_smoothing=label_smoothing,
        padding=padding, batch_size=batch_size, test_batch_size=test_batch_size, seed=seed, world=world,
    )  # fmt: skip
    if validation_images:
        task.note = f"test figures are those of {validation_images:,} held-out training images, not of the test set"
    return task


def read(root: str, mirrors: list[str] | None, world: World) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The training and the test images with their labels; with `mirrors`, downloaded if they are missing."""
    from pufferfish_bench.models.torchvision_import import torchvision

    source = torchvision.datasets.CIFAR10
    folder = Path(root) / source.base_folder
    files = [*source.train_list, *source.test_list, [source.meta["filename"], source.meta["md5"]]]
    if mirrors is not None:
        if world.first_here and faults(folder, files):
            archive = download.fetch(mirrors, Path(root) / source.filename, md5=source.tgz_md5)
            download.extract(archive, Path(root))
        world.barrier()
    try:
        train, test = (as_tensors(source(root, train=part)) for part in (True, False))
    except RuntimeError:  # torchvision found a file missing or damaged, but does not say which
        raise InputError(
            f"CIFAR-10 is not complete in {folder.resolve()}: {'; '.join(faults(folder, files))}. Set its location with "
            "data_root=DIR or PUFFERFISH_DATA=DIR, download it with `pufferfish-run model=resnet18 profile=cpu download=true "
            "probe_steps=1`, or use synthetic data: dataset=synthetic_images"
        ) from None
    return train, test


def held_out(train: tuple[Tensor, Tensor], count: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The training images without the last `count` of them, and those."""
    if count >= len(train[1]):
        raise InputError(f"dataset.validation_images={count} must be below the {len(train[1])} training images")
    return (train[0][:-count], train[1][:-count]), (train[0][-count:], train[1][-count:])


def faults(folder: Path, files: list[list[str]]) -> list[str]:
    """A sentence for each file, given by name and MD5, that is missing or damaged."""
    missing = [name for name, _ in files if not (folder / name).is_file()]
    damaged = [name for name, md5 in files if name not in missing and download.md5_of(folder / name) != md5]
    return [f"{name} is missing" for name in missing] + [f"{name} is damaged (its MD5 differs)" for name in damaged]


def as_tensors(dataset: object) -> tuple[Tensor, Tensor]:
    """The images as (count, channels, rows, columns), and the labels."""
    images = torch.from_numpy(numpy.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2)))
    return images, torch.tensor(dataset.targets)
