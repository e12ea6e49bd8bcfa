"""The ImageNet loader against torchvision's ImageFolder in a DataLoader with as many workers, on full-size photographs."""

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.batches import drain, drain_epoch
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images import crops, image_folder, imagenet

QUICK = {"rounds": 2, "pictures": 500}
TORCHVISION = "ImageFolder + DataLoader"
CROP_AREA = (0.08, 1.0)
SCALED = {"exact": False, "scaled": True}  # the ways to decode a file


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
    crop, world = imagenet.RandomCrop(size, CROP_AREA), single_process()
    loader = imagenet.Loader(
        pictures, crop, batch_size=batch_size, seed=1, workers=workers, prefetch=2, tolerated=0.0, world=world
    )
    task = imagenet.ImageClassification(
        train=loader, test=loader, classes=classes, mean=imagenet.MEAN, std=imagenet.STD, label_smoothing=0.0, world=world
    )
    task.channels_last = True  # as in a run
    return task


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
        kept = {name: image_folder.Pictures(paths, labels, scaled=scaled) for name, scaled in SCALED.items()}
        prepared = {"batch_size": batch_size, "size": size}
        work = {TORCHVISION: partial(drain, torchvisions(folder, repeats, workers, **prepared), len(paths), size)}
        for name, files in kept.items():
            work[name] = partial(drain_epoch, ours(files, len(names), workers, **prepared), len(paths), size)
        taken = interleaved.seconds(work, rounds=rounds)
        decoding = decoding_seconds(sorted(set(paths)))
        reducible = share_reducible(sorted(set(paths)), size)
    whole, *_, smallest = decoding.values()
    notes = {
        "exact": f"{len(paths):,} {what}, {workers} workers, crops of {size}x{size}.",
        "scaled": f"{100 * reducible:.0f} % of the random boxes have enough pixels to be decoded at half size or less. "
        f"Decoding takes {1e3 * whole:.2f} ms a picture at full size and still {1e3 * smallest:.2f} ms at an eighth: "
        "scaling does not save the entropy decoding.",
    }
    rival, counted = (TORCHVISION, taken[TORCHVISION]), {"count": len(paths), "unit": "images/s"}
    rows = [
        compare(f"loader_{name}", (f"our loader, {name}", taken[name]), rival, note=notes[name], **counted) for name in SCALED
    ]
    return rows, {"seconds": taken, "pictures": len(paths), "files": what, "decoding": decoding, "reducible": reducible}


def decoding_seconds(paths: Sequence[str], rounds: int = 3) -> dict[str, float]:
    """Seconds to decode a picture at full size and at each reduction: means over the files, medians over rounds."""

    def decode_all(by: int) -> None:
        for path in paths:
            with Image.open(path) as picture:
                picture.draft("RGB", (-(-picture.width // by), -(-picture.height // by)))
                picture.load()

    work = {f"1/{by}": partial(decode_all, by) for by in sorted((1, *crops.REDUCTIONS))}
    return {name: statistics.median(seconds) / len(paths) for name, seconds in interleaved.seconds(work, rounds=rounds).items()}


def share_reducible(paths: Sequence[str], size: int, draws: int = 2000) -> float:
    """The share of random boxes that scaled decoding can reduce."""
    crop, random = imagenet.RandomCrop(size, CROP_AREA), numpy.random.default_rng(1)
    sizes = []
    for path in paths:
        with Image.open(path) as picture:
            sizes.append(picture.size)
    cuts = (crop.cut(*sizes[number % len(sizes)], random.random(crop.numbers).tolist()) for number in range(draws))
    return sum(crops.largest_reduction(cut) > 1 for cut in cuts) / draws
