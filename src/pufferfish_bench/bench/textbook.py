"""ResNet-18 as a textbook writes it: contiguous tensors, every operation out of place, torch's SGD, a plain loop.

The layers, their names and what they compute are those of models/resnet18.py. A rival for the benchmark, not for training.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut.add_module("conv", nn.Conv2d(channels, out, kernel_size=1, stride=stride, bias=False))
            self.shortcut.add_module("bn", nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class TextbookResNet18(nn.Module):
    def __init__(self, classes: int, channels: tuple[int, int, int, int] = (64, 128, 256, 512)):
        super().__init__()
        first, second, third, fourth = channels
        self.conv1 = nn.Conv2d(3, first, kernel_size=3, padding=1, bias=False)
        self.layer1 = nn.Sequential(Block(first, first, 1), Block(first, first, 1))
        self.layer2 = nn.Sequential(Block(first, second, 2), Block(second, second, 1))
        self.layer3 = nn.Sequential(Block(second, third, 2), Block(third, third, 1))
        self.layer4 = nn.Sequential(Block(third, fourth, 2), Block(fourth, fourth, 1))
        self.linear = nn.Linear(fourth, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


def stepper(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One training step of a plain loop. The learning rate is 0, as in the other steps: the nets stay as they are."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
