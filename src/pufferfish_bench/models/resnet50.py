"""ResNet-50 and WideResNet-50-2 for ImageNet, with torchvision's layer names. Independent of factorisation."""

from torch import Tensor, nn

from pufferfish_bench.base.ranges import Count, Positive
from pufferfish_bench.models.initialisation import fan_out_normal
from pufferfish_bench.models.scaling import scaled

EXPANSION = 4  # output channels of a block, as a multiple of its stage's channels


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with a shortcut; the 3x3 has the stride ("v1.5")."""

    def __init__(self, inputs: int, inner: int, out: int, *, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != out:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)  # in place: the backward pass of BatchNorm does not need its output
        return self.relu(out)


class ResNet50(nn.Module):
    """A stem that reduces height and width to a quarter, then stages of 3, 4, 6 and 3 bottleneck blocks.

    `width` scales every layer; `inner_width` scales only the inside of the blocks: 2 gives WideResNet-50-2.
    """

    initialise = staticmethod(fan_out_normal)

    def __init__(self, *, classes: Count, width: Positive, inner_width: Positive):
        super().__init__()
        channels = scaled(64, width)
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for stage, (blocks, full) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
            inner = scaled(scaled(full, inner_width, "inner_width"), width)
            out = EXPANSION * scaled(full, width)
            first = Bottleneck(channels, inner, out, stride=1 if stage == 1 else 2)
            rest = (Bottleneck(out, inner, out, stride=1) for _ in range(blocks - 1))
            self.add_module(f"layer{stage}", nn.Sequential(first, *rest))
            channels = out
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        self.apply(self.initialise)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))
