"""CIFAR-10 from torchvision's files, found, checked and, if asked, fetched."""

from pathlib import Path
from typing import Literal

import numpy
import torch
from torch import Tensor

from pufferfish_bench import download
from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count, Share
from pufferfish_bench.tasks.images import Images
from pufferfish_bench.tasks.memory import in_memory
from pufferfish_bench.world import World

MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
STDS = {"paper": STD, "distributed": (0.2023, 0.1994, 0.2010)}  # by normalisation; the second as in the authors' distributed code


def cifar10(
    *,
    root: str,
    fetch: bool,
    mirrors: list[str],
    train_images: Count | None,
    classes: Count,
    label_smoothing: Share,
    padding: Literal["reflect", "zero"],
    normalisation: Literal["paper", "distributed"],
    batch_size: Count,
    test_batch_size: Count,
    seed: int,
    world: World,
) -> Images:
    """The task; `train_images` takes the first so many, all if it is null."""
    from pufferfish_bench.vision import torchvision

    if normalisation not in STDS:
        raise InputError(f"dataset.normalisation={normalisation} is not known; allowed: {', '.join(STDS)}")
    source = torchvision.datasets.CIFAR10
    folder = Path(root) / source.base_folder
    files = [*source.train_list, *source.test_list, [source.meta["filename"], source.meta["md5"]]]
    if fetch:
        if world.first_here and faults(folder, files):
            archive = download.fetch(mirrors, Path(root) / source.filename, md5=source.tgz_md5)
            download.extract(archive, Path(root))
        world.barrier()
    try:
        train, test = (as_tensors(source(root, train=part)) for part in (True, False))
    except RuntimeError:  # torchvision found a file missing or damaged; which one, it does not say
        raise InputError(
            f"CIFAR-10 is not in {folder.resolve()}: {'; '.join(faults(folder, files))}. Give its place with data_root=DIR "
            "or PUFFERFISH_DATA, fetch it with download=true, or use the embedded data: dataset=synthetic_images"
        ) from None
    if train_images is not None:
        if not 1 <= train_images <= len(train[1]):
            raise InputError(f"dataset.train_images={train_images} is outside 1..{len(train[1])}")
        train = train[0][:train_images], train[1][:train_images]
    return in_memory(
        train=train, test=test, classes=classes, mean=MEAN, std=STDS[normalisation], label_smoothing=label_smoothing,
        padding=padding, batch_size=batch_size, test_batch_size=test_batch_size, seed=seed, world=world,
    )  # fmt: skip


def faults(folder: Path, files: list[list[str]]) -> list[str]:
    """What is wrong with the files of a data set: missing or damaged ones, by name."""
    missing = [name for name, _ in files if not (folder / name).is_file()]
    damaged = [name for name, md5 in files if name not in missing and download.md5_of(folder / name) != md5]
    return [f"{name} is missing" for name in missing] + [f"{name} is damaged (its MD5 differs)" for name in damaged]


def as_tensors(dataset: object) -> tuple[Tensor, Tensor]:
    """Images as (count, channel, row, column) and labels."""
    images = torch.from_numpy(numpy.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2)))
    return images, torch.tensor(dataset.targets)
