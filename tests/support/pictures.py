"""Pictures for tests: made up, in folders like ImageNet's, and damaged in every way."""

import os
from pathlib import Path

import numpy
import torch
from PIL import Image

from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images.imagenet import imagenet
from pufferfish_bench.tasks.images.loader import Loader
from pufferfish_bench.tasks.images.task import ImageClassification

transforms = torchvision.transforms
CLASSES = ("n01440764", "n02102040", "n03000684")
PER_CLASS = 7
LEVELS = 2  # grey levels that rounding may differ by
SETTINGS = {
    "folder": "pictures", "classes": 3, "image_size": 24, "crop_area": (0.08, 1.0), "decode": "exact", "label_smoothing": 0.1,
    "batch_size": 4,
    "test_batch_size": 5, "tolerated_unreadable": 0.1, "max_megapixels": 1, "cache": False, "workers": 0, "prefetch": 2,
    "seed": 1, "world": single_process(),
}  # fmt: skip


def photograph(width: int, height: int, seed: int = 0) -> numpy.ndarray:
    """Smooth colours with some noise, like a photograph."""
    random = numpy.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(256, size=(6, 7, 3), dtype=numpy.uint8)).resize((width, height), Image.BICUBIC)
    noise = random.normal(0, 8, (height, width, 3))
    return (numpy.asarray(coarse) + noise).clip(0, 255).astype(numpy.uint8)


def as_tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(numpy.array(picture)).permute(2, 0, 1)


def assert_same_picture(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.shape == other.shape
    assert int((one.int() - other.int()).abs().max()) <= LEVELS


def task(root: Path, **changes: object) -> ImageClassification:
    return imagenet(root=str(root), **SETTINGS | changes)


def batches(source: Loader, epoch: int = 0, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels) for images, labels in source.batches(epoch, start)]


def order(source: Loader, epoch: int) -> list[int]:
    return [index for _, indices, _ in source.requests(epoch, 0) for index in indices.tolist()]


def assert_same_batches(some: list, others: list) -> None:
    assert len(some) == len(others)
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_picture(path: Path) -> None:
    path.write_text("<html>404 Not Found</html>")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # opening it blocks until somebody writes


def link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")  # endless


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path) -> None:
    Image.new("L", (1_001, 1_000)).save(path)
