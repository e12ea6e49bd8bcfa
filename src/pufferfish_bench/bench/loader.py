"""Pictures per second of the ImageNet loader, with and without its cache, and of torchvision's ImageFolder in a DataLoader.

python -m pufferfish_bench.bench.loader DIR     DIR holds a folder of pictures for each class
"""

import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch.utils.data import ConcatDataset, DataLoader

from pufferfish_bench.bench import interleaved
from pufferfish_bench.report import tables
from pufferfish_bench.speech import spoken_errors
from pufferfish_bench.tasks import folders, imagenet
from pufferfish_bench.vision import torchvision
from pufferfish_bench.world import alone

ROUNDS = 5
WORKERS = (1, 2)
TORCHVISION, OURS, CACHED = "torchvision", "pufferfish-bench", "pufferfish-bench, cached"


def torchvisions(folder: Path, repeats: int, workers: int, *, batch_size: int, size: int) -> DataLoader:
    """What everybody writes: decode, crop, flip, to floats, normalise, in the worker."""
    t = torchvision.transforms
    steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(imagenet.MEAN, imagenet.STD)]
    data = torchvision.datasets.ImageFolder(folder, t.Compose(steps))
    return DataLoader(
        ConcatDataset([data] * repeats), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )


def ours(pictures: folders.Pictures, classes: int, workers: int, *, batch_size: int, size: int) -> imagenet.Images:
    crop, world = imagenet.RandomCrop(size, (0.08, 1.0)), alone()
    loader = imagenet.Loader(
        pictures, crop, batch_size=batch_size, seed=1, workers=workers, prefetch=2, tolerated=0.0, world=world
    )
    return imagenet.Images(
        train=loader, test=loader, classes=classes, mean=imagenet.MEAN, std=imagenet.STD, label_smoothing=0.0, world=world
    )


def drain_epoch(task: imagenet.Images, expected: int, size: int) -> None:
    drain(task.batches(0, 0), expected, size)


def drain(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], expected: int, size: int) -> None:
    """Take every batch, and see that each picture came as normalised floats."""
    count = 0
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert images.shape[1:] == (3, size, size)
        count += len(labels)
    assert count == expected


def measure(folder: Path, *, rounds: int, out: Path, pictures: int = 2000, batch_size: int = 50, size: int = 224) -> None:
    """Print the table and write the figures to `out`; an epoch has at least so many pictures: a smaller folder is repeated."""
    torch.set_num_threads(1)  # the other cores are for the workers
    names = folders.class_names(folder)
    paths, labels = folders.listed(folder, names)
    repeats = -(-pictures // len(paths))
    paths, labels = paths * repeats, labels * repeats
    plain, decoded = folders.Pictures(paths, labels), folders.DecodedPictures(paths, labels)
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


def main(words: Sequence[str]) -> None:
    parser = interleaved.arguments("loader", __doc__, rounds=ROUNDS)
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds a folder of pictures for each class")
    given = parser.parse_args(words)
    if not given.folder.is_dir():
        parser.error(f"there is no folder {given.folder}")
    measure(**vars(given))


if __name__ == "__main__":
    with spoken_errors():
        main(sys.argv[1:])
