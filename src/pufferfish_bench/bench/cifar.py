"""CIFAR-10's batches: augmented and normalised a batch at a time, against torchvision's transforms in a DataLoader."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pufferfish_bench.bench import interleaved
from pufferfish_bench.bench.batches import drain, drain_epoch
from pufferfish_bench.bench.row import Row, compare
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images.cifar10 import MEAN, STD
from pufferfish_bench.tasks.images.tensor_images import PADDING, task_from_tensors

SIZE, CLASSES = 32, 10
QUICK = {"rounds": 2, "images": 10_000}
OURS, TORCHVISION = "our batches", "torchvision v2 in a DataLoader"


class TransformedImages(Dataset):
    """Images in memory that are transformed on access, as torchvision's own data sets do it."""

    def __init__(self, images: Tensor, labels: Tensor):
        from torchvision.transforms import v2  # after torchvision_import, without which it cannot be imported on a CPU

        self.images = images
        self.labels = labels
        crop = v2.RandomCrop(SIZE, padding=PADDING, padding_mode="reflect")
        floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD, inplace=True)]
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), *floats])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[index]), self.labels[index]


def measure(
    *, rounds: int = 5, images: int = 50_000, batch_size: int = 128, workers: int = 2
) -> tuple[list[Row], dict[str, Any]]:
    """An epoch of random pixels, whose values do not matter for the speed."""
    torch.manual_seed(1)
    assert torchvision  # imported for its side effect
    pixels = torch.randint(256, (images, 3, SIZE, SIZE), dtype=torch.uint8)
    data = pixels, torch.randint(CLASSES, (images,))
    task = task_from_tensors(
        train=data, test=(pixels[:1], data[1][:1]), classes=CLASSES, mean=MEAN, std=STD, label_smoothing=0.0,
        batch_size=batch_size, test_batch_size=batch_size, seed=1, world=single_process(),
    )  # fmt: skip
    task.channels_last = True  # as in a run
    theirs = DataLoader(
        TransformedImages(*data), batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    taken = interleaved.seconds(
        {OURS: partial(drain_epoch, task, images, SIZE), TORCHVISION: partial(drain, theirs, images, SIZE)}, rounds=rounds
    )
    note = (
        f"{images:,} images in batches of {batch_size}, cropped, flipped and normalised. The DataLoader has {workers} worker "
        "processes, ours none."
    )
    return [compare("cifar", *taken.items(), count=images, unit="images/s", note=note)], {"seconds": taken}
