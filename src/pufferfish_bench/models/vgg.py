"""VGG with batch normalisation for 32x32 images, layers numbered as in the paper. Independent of factorisation."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.ranges import Count, Positive
from pufferfish_bench.models.initialisation import fan_out_normal
from pufferfish_bench.models.scaling import scaled

POOL = "pool"
VGG11 = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
VGG19 = (64, 64, POOL, 128, 128, POOL, *[256] * 4, POOL, *[512] * 4, POOL, *[512] * 4, POOL)


class VGG(nn.Module):
    """3x3 convolutions with BatchNorm in stages separated by max-pooling, then one or three linear layers."""

    initialise = staticmethod(fan_out_normal)

    def __init__(self, *, stages: Sequence[int | str], classes: int, width: float, hidden_layers: int):
        super().__init__()
        self.features = nn.ModuleDict()
        channels, number = 3, 0
        self.pool_after: set[int] = set()
        for entry in stages:
            if entry == POOL:
                self.pool_after.add(number)
                continue
            number += 1
            out = scaled(entry, width)
            self.features[f"conv{number}"] = nn.Conv2d(channels, out, 3, padding=1, bias=False)
            self.features[f"norm{number}"] = nn.BatchNorm2d(out)
            channels = out
        self.convolutions = number
        self.classifier = nn.Sequential()
        for _ in range(hidden_layers):
            number += 1
            self.classifier.add_module(f"drop{number}", nn.Dropout(0.5))
            self.classifier.add_module(f"fc{number}", nn.Linear(channels, channels))
            self.classifier.add_module(f"relu{number}", nn.ReLU(inplace=True))
        self.classifier.add_module(f"fc{number + 1}", nn.Linear(channels, classes))
        self.apply(self.initialise)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for number in range(1, self.convolutions + 1):
            x = F.relu(self.features[f"norm{number}"](self.features[f"conv{number}"](x)), inplace=True)
            if number in self.pool_after:
                x = F.max_pool2d(x, 2)
        # 1x1 here, except in the lottery-ticket network, which averages over 2x2
        return self.classifier(x.mean(dim=(2, 3)))


class LotteryVGG(VGG):
    """The VGG-19 of the lottery-ticket comparison: its last pooling is an average, and its initialisation is open_lth's."""

    @staticmethod
    def initialise(layer: nn.Module) -> None:
        """Kaiming-normal weights; BatchNorm scales uniform in [0, 1)."""
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def vgg11(*, classes: Count, width: Positive) -> VGG:
    return VGG(stages=VGG11, classes=classes, width=width, hidden_layers=2)


def vgg19(*, classes: Count, width: Positive) -> VGG:
    return VGG(stages=VGG19, classes=classes, width=width, hidden_layers=2)


def vgg19_lth(*, classes: Count, width: Positive) -> LotteryVGG:
    return LotteryVGG(stages=VGG19[:-1], classes=classes, width=width, hidden_layers=0)
