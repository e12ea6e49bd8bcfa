"""Pictures per second of the ImageNet loader, with and without its cache, and of torchvision's ImageFolder in a DataLoader.

python -m pufferfish_bench.bench.loader DIR     DIR holds a folder of pictures for each class
"""

import statistics
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch.utils.data import ConcatDataset, DataLoader

from pufferfish_bench.bench import interleaved
from pufferfish_bench.report import tables
from pufferfish_bench.tasks import folders, imagenet
from pufferfish_bench.vision import torchvision

PICTURES = 2000  # at least so many an epoch: a smaller folder is read several times
BATCH, SIZE, ROUNDS = 50, 224, 5
WORKERS = (1, 2)
TORCHVISION, OURS, CACHED = "torchvision", "pufferfish-bench", "pufferfish-bench, cached"
CPU = torch.device("cpu")


def torchvisions(folder: Path, repeats: int, workers: int) -> DataLoader:
    """What everybody writes: decode, crop, flip, to floats, normalise, in the worker."""
    t = torchvision.transforms
    steps = [t.RandomResizedCrop(SIZE), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(imagenet.MEAN, imagenet.STD)]
    data = torchvision.datasets.ImageFolder(folder, t.Compose(steps))
    return DataLoader(
        ConcatDataset([data] * repeats), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )


def ours(pictures: folders.Pictures, classes: int, workers: int) -> imagenet.Images:
    crop = imagenet.RandomCrop(SIZE, (0.08, 1.0))
    loader = imagenet.Loader(pictures, crop, batch_size=BATCH, seed=1, workers=workers, prefetch=2, tolerated=0.0, device=CPU)
    return imagenet.Images(
        train=loader, test=loader, classes=classes, mean=imagenet.MEAN, std=imagenet.STD, label_smoothing=0.0, device=CPU
    )


def drain_epoch(task: imagenet.Images, expected: int) -> None:
    drain(task.batches(0, 0), expected)


def drain(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], expected: int) -> None:
    """Take every batch, and see that each picture came as normalised floats."""
    count = 0
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert images.shape[1:] == (3, SIZE, SIZE)
        count += len(labels)
    assert count == expected


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # the other cores are for the workers
    names = folders.class_names(folder)
    paths, labels = folders.listed(folder, names)
    repeats = -(-PICTURES // len(paths))
    paths, labels = paths * repeats, labels * repeats
    plain, decoded = folders.Pictures(paths, labels), folders.DecodedPictures(paths, labels)
    table = tables.table(
        "loader", "workers", "pictures a second", "times torchvision's", title=f"{len(paths):,} pictures: {folder}"
    )
    figures = []
    for workers in WORKERS:
        theirs = torchvisions(folder, repeats, workers)
        tasks = {name: ours(pictures, len(names), workers) for name, pictures in ((OURS, plain), (CACHED, decoded))}
        contenders = {name: partial(drain_epoch, task, len(paths)) for name, task in tasks.items()}
        taken = interleaved.seconds({TORCHVISION: partial(drain, theirs, len(paths)), **contenders}, rounds=ROUNDS)
        for name, seconds in taken.items():
            rate, gain = len(paths) / statistics.median(seconds), interleaved.ratio(taken[TORCHVISION], seconds)
            figures.append({"loader": name, "workers": workers, "pictures_per_second": rate, "times_torchvision": gain})
            table.add_row(name, str(workers), f"{rate:,.0f}", f"{gain:.2f}")
    tables.show(table, Console())
    settings = {"pictures": len(paths), "batch_size": BATCH, "image_size": SIZE, "rounds": ROUNDS}
    destination = Path("results/bench") / f"loader-{(folder.parent if folder.name == 'train' else folder).name}.json"
    interleaved.write(destination, {"settings": settings, "loaders": figures})


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
