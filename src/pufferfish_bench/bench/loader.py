"""Pictures per second of the ImageNet loader, with and without its cache, and of torchvision's ImageFolder in a DataLoader."""

import statistics
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch.utils.data import ConcatDataset, DataLoader

from pufferfish_bench.bench import interleaved
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.report import tables
from pufferfish_bench.tasks.images import image_folder, imagenet

ROUNDS = 5
WORKERS = (1, 2)
TORCHVISION, OURS, CACHED = "torchvision", "pufferfish-bench", "pufferfish-bench, cached"


def torchvisions(folder: Path, repeats: int, workers: int, *, batch_size: int, size: int) -> DataLoader:
    """The usual pipeline: decode, crop, flip, convert to floats and normalise, all in the worker."""
    t = torchvision.transforms
    steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(imagenet.MEAN, imagenet.STD)]
    data = torchvision.datasets.ImageFolder(folder, t.Compose(steps))
    return DataLoader(
        ConcatDataset([data] * repeats), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )


def ours(
    pictures: image_folder.Pictures, classes: int, workers: int, *, batch_size: int, size: int
) -> imagenet.ImageClassification:
    crop, world = imagenet.RandomCrop(size, (0.08, 1.0)), single_process()
    loader = imagenet.Loader(
        pictures, crop, batch_size=batch_size, seed=1, workers=workers, prefetch=2, tolerated=0.0, world=world
    )
    return imagenet.ImageClassification(
        train=loader, test=loader, classes=classes, mean=imagenet.MEAN, std=imagenet.STD, label_smoothing=0.0, world=world
    )


def drain_epoch(task: imagenet.ImageClassification, expected: int, size: int) -> None:
    drain(task.batches(0, 0), expected, size)


def drain(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], expected: int, size: int) -> None:
    """Take every batch, and check that each picture arrives as normalised floats."""
    count = 0
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert images.shape[1:] == (3, size, size)
        count += len(labels)
    assert count == expected


def measure(
    folder: Path, *, out: Path, rounds: int = ROUNDS, pictures: int = 2000, batch_size: int = 50, size: int = 224
) -> None:
    """Print the table and write the numbers to `out`; a folder with fewer than `pictures` pictures is repeated."""
    torch.set_num_threads(1)  # the other cores are for the workers
    names = image_folder.class_names(folder)
    paths, labels = image_folder.list_pictures(folder, names)
    repeats = -(-pictures // len(paths))
    paths, labels = paths * repeats, labels * repeats
    plain, decoded = image_folder.Pictures(paths, labels), image_folder.CachedPictures(paths, labels)
    table = tables.table(
        "loader", "workers", "pictures a second", "times torchvision's", title=f"{len(paths):,} pictures: {folder}"
    )
    figures = []
    for workers in WORKERS:
        theirs = torchvisions(folder, repeats, workers, batch_size=batch_size, size=size)
        tasks = {
            name: ours(kept, len(names), workers, batch_size=batch_size, size=size)
            for name, kept in ((OURS, plain), (CACHED, decoded))
        }
        contenders = {name: partial(drain_epoch, task, len(paths), size) for name, task in tasks.items()}
        taken = interleaved.seconds({TORCHVISION: partial(drain, theirs, len(paths), size), **contenders}, rounds=rounds)
        for name, seconds in taken.items():
            rate, gain = len(paths) / statistics.median(seconds), interleaved.ratio(taken[TORCHVISION], seconds)
            figures.append({"loader": name, "workers": workers, "pictures_per_second": rate, "times_torchvision": gain})
            table.add_row(name, str(workers), f"{rate:,.0f}", f"{gain:.2f}")
    tables.show(table, Console())
    settings = {"pictures": len(paths), "batch_size": batch_size, "image_size": size, "rounds": rounds}
    destination = out / f"loader-{(folder.parent if folder.name == 'train' else folder).name}.json"
    interleaved.write(destination, {"settings": settings, "loaders": figures})
