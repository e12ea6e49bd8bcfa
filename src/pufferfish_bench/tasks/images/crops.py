"""Square crops of pictures: ImageNet's scale and aspect-ratio augmentation for training, and the centre crop for evaluation.

They match torchvision's RandomResizedCrop and Resize + CenterCrop to one or two grey levels. All pixels stay uint8, because
torch resizes eight-bit pixels in a third of Pillow's time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

ASPECT = (3 / 4, 4 / 3)  # range of a random box's width / height
ATTEMPTS = 10  # random boxes tried before the centre is used

Box = tuple[int, int, int, int]  # left, top, width, height


class Crop:
    """Crops a picture (height, width, 3) to a square (3, size, size): a pure function of the pixels and of random numbers."""

    size: int
    numbers: int  # how many random numbers it needs, each uniform in [0, 1)

    def __call__(self, pixels: numpy.ndarray, drawn: Sequence[float]) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomCrop(Crop):
    """A box of random area, aspect ratio and position, resized, and flipped horizontally with probability 1/2."""

    size: int
    area: tuple[float, float]  # smallest and largest share of the picture's area
    numbers = 3 + 2 * ATTEMPTS

    def __call__(self, pixels: numpy.ndarray, drawn: Sequence[float]) -> Tensor:
        height, width, _ = pixels.shape
        mirror, *drawn = drawn
        left, top, box_width, box_height = random_box(width, height, self.area, drawn)
        square = resized(pixels[top : top + box_height, left : left + box_width], self.size, self.size)
        return square.flip(2) if mirror < 0.5 else square


@dataclass(frozen=True)
class CentreCrop(Crop):
    """The centre square, with 7/8 of the shorter side: 224 of 256 pixels."""

    size: int
    numbers = 0

    def __call__(self, pixels: numpy.ndarray, drawn: Sequence[float]) -> Tensor:
        height, width, _ = pixels.shape
        shorter, side = min(height, width), self.size * 8 // 7
        whole = resized(pixels, int(side * height / shorter), int(side * width / shorter))
        top, left = (round((length - self.size) / 2) for length in whole.shape[1:])
        return whole[:, top : top + self.size, left : left + self.size]


def random_box(width: int, height: int, area: tuple[float, float], drawn: Sequence[float]) -> Box:
    """A box inside a picture: area uniform in `area`, aspect ratio log-uniform in ASPECT, position uniform.

    The first two random numbers choose the position; each attempt to find a size that fits takes two more.
    """
    across, down, *sizes = drawn
    for share, shape in zip(sizes[::2], sizes[1::2], strict=True):
        target = width * height * (area[0] + share * (area[1] - area[0]))
        aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** shape
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(across * (width - w + 1)), int(down * (height - h + 1)), w, h
    # a very long picture: the largest centre box with an allowed aspect ratio
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def resized(pixels: numpy.ndarray, height: int, width: int) -> Tensor:
    """A picture (rows, columns, 3) resized to (3, height, width), bilinear with antialiasing."""
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
    return F.interpolate(image, (height, width), mode="bilinear", antialias=True)[0]
