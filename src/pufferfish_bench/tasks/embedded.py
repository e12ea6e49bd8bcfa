"""Tasks on data that the package draws itself."""

import torch

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks.images import Images
from pufferfish_bench.tasks.memory import in_memory
from pufferfish_bench.tasks.synthetic import synthetic_images

TEST_SEED = 1 << 40  # apart from every seed of a training set: all runs are judged by the same images


def images(
    *,
    train_images: int,
    test_images: int,
    classes: int,
    label_smoothing: float,
    batch_size: int,
    test_batch_size: int,
    seed: int,
    device: torch.device,
) -> Images:
    """Classify synthetic images. The data is the same for all seeds; a seed is an order and a start, as with real data."""
    for name, count in (("train_images", train_images), ("test_images", test_images)):
        if count < 1:
            raise InputError(f"dataset.{name}={count} must be at least 1")
    return in_memory(
        train=synthetic_images(train_images, seed=0), test=synthetic_images(test_images, seed=TEST_SEED),
        classes=classes, mean=(0.5,) * 3, std=(0.25,) * 3, label_smoothing=label_smoothing, batch_size=batch_size,
        test_batch_size=test_batch_size, seed=seed, device=device,
    )  # fmt: skip
