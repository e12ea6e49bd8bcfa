"""The smallest models and the smallest task in which something could go wrong."""

from functools import partial

import torch
from torch import nn

from pufferfish_bench.distributed.world import World, single_process
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.tasks.images.tensor_images import task_from_tensors
from pufferfish_bench.training import triggers


class TinyNet(nn.Module):
    """Convolutions, a BatchNorm, dropout and linear layers: one of everything that has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, stride=2, bias=False)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(8 * 4, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv1(images)).relu()
        return self.fc2(self.fc1(self.drop(self.conv2(x).flatten(1))).relu())


class Plain(nn.Module):
    """No BatchNorm and no dropout: the gradient of a batch is the mean of the gradients of its halves."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc1 = nn.Linear(6 * 64, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(self.conv(images).relu().flatten(1)).relu())


def every_kind_of_layer() -> nn.Module:
    """Layers of each kind and of several sizes, one of them in channels-last format, with random biases; always the same."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(8, 12, 3).to(memory_format=torch.channels_last), nn.Linear(20, 20), nn.Linear(60, 16, bias=False),
        LSTM(10, 12), nn.Conv1d(6, 30, 2), nn.BatchNorm1d(30), nn.Linear(9, 40),
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return model


TO_FACTORISE = {"0": 4, "1": 5, "2": 6, "3": 3, "4": 7, "6": 9}  # ranks for every_kind_of_layer
TINY_LAYERS = {"keep": ["conv1", "fc2"], "first": None, "rank_ratio": 0.5, "ranks": {}}
# what Pufferfish needs besides warmup_epochs, start and momentum
PUFFERFISH = {
    "layers": TINY_LAYERS, "trigger": partial(triggers.fixed_epoch, epoch=100), "ranks": "ratio", "prune_ratio": 0.3, "masks": 3,
    "warmup_reducer": None,
}  # fmt: skip


def tiny_task(
    *, seed: int = 1, images: int = 50, test_images: int = 20, batch_size: int = 8, world: World | None = None
) -> ImageClassification:
    """Random 8x8 images of four classes; 50 in batches of 8 leave a last batch of 2."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % 4
    return task_from_tensors(
        train=(pixels, labels), test=(pixels[:test_images], labels[:test_images]), classes=4, mean=(0.5,) * 3, std=(0.25,) * 3,
        label_smoothing=0.0, batch_size=batch_size, test_batch_size=6, seed=seed, world=world or single_process(),
    )  # fmt: skip


class Pool(nn.Module):
    """Classifies by the means of patches: trainable, without a layer that can be factorised."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.classes = num_classes
        self.scale = nn.Parameter(torch.ones(num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool1d(x.flatten(1), self.classes) * self.scale
