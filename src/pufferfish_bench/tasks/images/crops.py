"""Square crops of pictures: ImageNet's scale and aspect-ratio augmentation for training, and the centre crop for evaluation.

They match torchvision's RandomResizedCrop and Resize + CenterCrop to one or two grey levels. All pixels stay uint8, because
torch resizes eight-bit pixels in a third of Pillow's time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

ASPECT = (3 / 4, 4 / 3)  # range of a random box's width / height
ATTEMPTS = 10  # random boxes tried before the centre is used

REDUCTIONS = (8, 4, 2)  # a JPEG decoder can decode at 1/8, 1/4 and 1/2 of the size

Box = tuple[int, int, int, int]  # left, top, width, height


class Cut(NamedTuple):
    """What a crop takes from a picture. It depends on the picture's size only, so it is known before decoding."""

    box: Box  # in pixels of the full-size picture
    height: int  # the box is resized to this height and width; the crop is the centre of the result
    width: int
    mirror: bool = False


class Crop:
    """Crops a picture (height, width, 3) to a square (3, size, size): a pure function of the pixels and of random numbers."""

    size: int
    numbers: int  # how many random numbers it needs, each uniform in [0, 1)

    def cut(self, width: int, height: int, drawn: Sequence[float]) -> Cut:
        """What to take from a picture of this size."""
        raise NotImplementedError

    def square(self, pixels: numpy.ndarray, cut: Cut) -> Tensor:
        """The crop, given the pixels of the cut's box. They may have been decoded at a reduced size."""
        whole = resized(pixels, cut.height, cut.width)
        top, left = (round((length - self.size) / 2) for length in whole.shape[1:])
        square = whole[:, top : top + self.size, left : left + self.size]
        return square.flip(2) if cut.mirror else square

    def __call__(self, pixels: numpy.ndarray, drawn: Sequence[float]) -> Tensor:
        height, width, _ = pixels.shape
        cut = self.cut(width, height, drawn)
        return self.square(inside(pixels, cut.box), cut)


@dataclass(frozen=True)
class RandomCrop(Crop):
    """A box of random area, aspect ratio and position, resized, and flipped horizontally with probability 1/2."""

    size: int
    area: tuple[float, float]  # smallest and largest share of the picture's area
    numbers = 3 + 2 * ATTEMPTS

    def cut(self, width: int, height: int, drawn: Sequence[float]) -> Cut:
        mirror, *drawn = drawn
        return Cut(random_box(width, height, self.area, drawn), self.size, self.size, mirror < 0.5)


@dataclass(frozen=True)
class CentreCrop(Crop):
    """The centre square, with 7/8 of the shorter side: 224 of 256 pixels."""

    size: int
    numbers = 0

    def cut(self, width: int, height: int, drawn: Sequence[float]) -> Cut:
        shorter, side = min(height, width), self.size * 8 // 7
        return Cut((0, 0, width, height), int(side * height / shorter), int(side * width / shorter))


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


def inside(pixels: numpy.ndarray, box: Box) -> numpy.ndarray:
    left, top, width, height = box
    return pixels[top : top + height, left : left + width]


def reduced(box: Box, reduction: int) -> Box:
    """A box in the pixels of a reduced picture: each edge moves to the nearest pixel."""
    left, top, width, height = box
    edges = (left, top, left + width, top + height)
    left, top, right, bottom = ((edge + reduction // 2) // reduction for edge in edges)
    return left, top, right - left, bottom - top


def largest_reduction(cut: Cut) -> int:
    """The largest reduction at which the box has as many pixels as the crop in both directions, so that none is enlarged."""
    _, _, width, height = cut.box
    return next((by for by in REDUCTIONS if width >= by * cut.width and height >= by * cut.height), 1)


def resized(pixels: numpy.ndarray, height: int, width: int) -> Tensor:
    """A picture (rows, columns, 3) resized to (3, height, width), bilinear with antialiasing."""
    # the batch dimension comes before the permutation: only then does torch see a channels-last image, which it resizes faster
    image = torch.from_numpy(numpy.ascontiguousarray(pixels))[None].permute(0, 3, 1, 2)
    return F.interpolate(image, (height, width), mode="bilinear", antialias=True)[0]
