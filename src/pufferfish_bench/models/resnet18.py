"""ResNet-18 for 32x32 images. Independent of factorisation."""

import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.ranges import Count, Positive
from pufferfish_bench.models.scaling import scaled


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, channels: int, out: int, *, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut.add_module("conv", nn.Conv2d(channels, out, 1, stride=stride, bias=False))
            self.shortcut.add_module("bn", nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)  # in place: the backward pass of BatchNorm does not need its output
        return F.relu(out, inplace=True)


class ResNet18(nn.Module):
    """Four stages of two basic blocks. `stem_norm` adds a BatchNorm after the first convolution; the paper's network has none."""

    def __init__(self, *, classes: Count, width: Positive, stem_norm: bool):
        super().__init__()
        channels = [scaled(full, width) for full in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0]) if stem_norm else nn.Identity()
        inputs = channels[0]
        for stage, out in enumerate(channels, start=1):
            first = BasicBlock(inputs, out, stride=1 if stage == 1 else 2)
            self.add_module(f"layer{stage}", nn.Sequential(first, BasicBlock(out, out, stride=1)))
            inputs = out
        self.linear = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(x.mean(dim=(2, 3)))
