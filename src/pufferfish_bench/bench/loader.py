"""The ImageNet loader against torchvision's ImageFolder in a DataLoader with as many workers, on full-size photographs."""

import contextlib
import inspect
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images import image_folder, imagenet

QUICK = {"rounds": 2, "pictures": 500}
TORCHVISION = "ImageFolder + DataLoader"
SCALED = "scaled"  # the argument of Pictures for decoding at a reduced size


def decodings() -> dict[str, dict[str, Any]]:
    """The ways to decode a file that the loader has, and the arguments of Pictures for each."""
    scaled = {"scaled": {SCALED: True}} if SCALED in inspect.signature(image_folder.Pictures).parameters else {}
    return {"exact": {}, **scaled}


def torchvisions(folder: Path, repeats: int, workers: int, *, batch_size: int, size: int) -> DataLoader:
    """The usual pipeline: decode, crop, flip, convert to floats and normalise, all in the worker."""
    t = torchvision.transforms
    steps = [t.RandomResizedCrop(size), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(imagenet.MEAN, imagenet.STD)]
    data = torchvision.datasets.ImageFolder(folder, t.Compose(steps))
    return DataLoader(
        ConcatDataset([data] * repeats), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
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


@contextlib.contextmanager
def photographs(count: int, size: tuple[int, int]) -> Iterator[tuple[Path, str]]:
    """A folder of full-size photographs with one folder per class, and what they are: real ones if there are any."""
    real = Path(os.environ.get("PUFFERFISH_DATA", "data")) / "imagenet_fullsize"
    if real.is_dir():
        yield real, "photographs of imagenet_fullsize"
        return
    with tempfile.TemporaryDirectory() as name:
        for number in range(count):
            folder = Path(name) / f"class{number % 2}"
            folder.mkdir(exist_ok=True)
            Image.fromarray(synthesised(*size, seed=number)).save(folder / f"{number}.jpg", quality=95)
        yield Path(name), f"synthesised {size[0]}x{size[1]} JPEG files"


def synthesised(width: int, height: int, seed: int) -> numpy.ndarray:
    """Smooth colours with some noise, which a JPEG file stores like a photograph."""
    random = numpy.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(256, size=(6, 7, 3), dtype=numpy.uint8)).resize((width, height), Image.BICUBIC)
    return (numpy.asarray(coarse) + random.normal(0, 8, (height, width, 3))).clip(0, 255).astype(numpy.uint8)


def measure(
    *,
    rounds: int = 5,
    pictures: int = 2000,
    batch_size: int = 50,
    size: int = 224,
    workers: int = 2,
    photograph: tuple[int, int] = (500, 375),
) -> tuple[list[Row], dict[str, Any]]:
    """At least `pictures` pictures, which are repeated if the folder has fewer; `photograph` is the size of synthesised ones."""
    torch.set_num_threads(1)  # the other cores are for the workers
    with photographs(min(pictures, 100), photograph) as (folder, what):
        names = image_folder.class_names(folder)
        paths, labels = (list(part) for part in image_folder.list_pictures(folder, names))
        repeats = -(-pictures // len(paths))
        paths, labels = paths * repeats, labels * repeats
        kept = {name: image_folder.Pictures(paths, labels, **how) for name, how in decodings().items()}
        prepared = {"batch_size": batch_size, "size": size}
        work = {TORCHVISION: partial(drain, torchvisions(folder, repeats, workers, **prepared), len(paths), size)}
        for name, files in kept.items():
            work[name] = partial(drain_epoch, ours(files, len(names), workers, **prepared), len(paths), size)
        taken = interleaved.seconds(work, rounds=rounds)
    note = f"{len(paths):,} {what}, {workers} workers, crops of {size}x{size}."
    rival, counted = (TORCHVISION, taken[TORCHVISION]), {"count": len(paths), "unit": "images/s", "note": note}
    rows = [compare(f"loader_{name}", (f"our loader, {name}", taken[name]), rival, **counted) for name in decodings()]
    return rows, {"seconds": taken, "pictures": len(paths), "files": what}
