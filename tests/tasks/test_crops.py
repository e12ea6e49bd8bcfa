"""Crops: compared with torchvision's transforms, and boxes that stay within their limits."""

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images.crops import ASPECT, ATTEMPTS, CentreCrop, RandomCrop, random_box, resized
from tests.support.pictures import as_tensor, assert_same_picture, photograph

transforms = torchvision.transforms
sides = st.integers(1, 400)


@given(sides, sides, st.sampled_from([(16, 16), (224, 224), (90, 31)]))
def test_resizing_equals_pillows_bilinear(width: int, height: int, size: tuple[int, int]):
    pixels = photograph(width, height)
    expected = Image.fromarray(pixels).resize((size[1], size[0]), Image.BILINEAR)
    assert_same_picture(resized(pixels, *size), as_tensor(expected))


@given(st.integers(30, 300), st.integers(30, 300), st.sampled_from([32, 64, 224]))
def test_the_centre_crop_equals_torchvisions(width: int, height: int, size: int):
    pixels = photograph(width, height)
    expected = transforms.Compose([transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)])(Image.fromarray(pixels))
    assert_same_picture(CentreCrop(size)(pixels, ()), as_tensor(expected))


def numbers(seed: int) -> list[float]:
    return numpy.random.default_rng(seed).random(RandomCrop.numbers, dtype=numpy.float32).tolist()


@given(st.integers(0, 1000), st.integers(20, 200), st.integers(20, 200))
def test_a_random_crop_equals_torchvisions_with_the_same_box(seed: int, width: int, height: int):
    pixels, (mirror, *rest) = photograph(width, height), numbers(seed)
    left, top, w, h = random_box(width, height, (0.08, 1.0), rest)
    expected = transforms.functional.resized_crop(Image.fromarray(pixels), top, left, h, w, [48, 48])
    if mirror < 0.5:
        expected = transforms.functional.hflip(expected)
    assert_same_picture(RandomCrop(48, (0.08, 1.0))(pixels, [mirror, *rest]), as_tensor(expected))


@given(sides, sides, st.integers(0, 10**6), st.floats(0.01, 1.0))
def test_a_box_lies_inside_its_picture_and_has_an_allowed_area_and_shape(width: int, height: int, seed: int, least: float):
    left, top, w, h = random_box(width, height, (least, 1.0), numbers(seed)[1:])
    assert 0 <= left <= left + w <= width
    assert 0 <= top <= top + h <= height
    assert w >= 1
    assert h >= 1
    # exact up to rounding each side to a whole pixel
    assert (w + 0.5) / (h - 0.5) >= ASPECT[0] or w == width
    assert (w - 0.5) / (h + 0.5) <= ASPECT[1] or h == height
    if 1 / 2 <= width / height <= 2:  # otherwise no box of a large area may fit, and the centre is used
        assert (w + 0.5) * (h + 0.5) >= least * width * height or (w, h) in ((width, h), (w, height))


def test_boxes_are_distributed_as_torchvisions():
    size, count = (500, 375), 4000
    ours = numpy.array([random_box(*size, (0.08, 1.0), numbers(seed)[1:]) for seed in range(count)], dtype=float)
    torch.manual_seed(0)
    picture = torch.empty(3, size[1], size[0], device="meta")
    drawn = [transforms.RandomResizedCrop.get_params(picture, (0.08, 1.0), ASPECT) for _ in range(count)]
    theirs = numpy.array([(left, top, w, h) for top, left, h, w in drawn], dtype=float)

    def figures(boxes: numpy.ndarray) -> list[numpy.ndarray]:
        left, top, w, h = boxes.T
        return [w * h, w / h, left, top]

    for one, other in zip(figures(ours), figures(theirs), strict=True):
        points = numpy.sort(numpy.concatenate([one, other]))
        shares = [numpy.searchsorted(numpy.sort(values), points, side="right") / count for values in (one, other)]
        # Kolmogorov-Smirnov test: by chance they differ more once in ten thousand times
        assert numpy.abs(shares[0] - shares[1]).max() < math.sqrt(-math.log(1e-4 / 2) / count)


@pytest.mark.parametrize("mode", ["width", "height"])
def test_a_very_long_picture_gives_its_centre(mode: str):
    size = (300, 10) if mode == "width" else (10, 300)
    left, top, w, h = random_box(*size, (0.9, 1.0), numbers(0)[1:])
    assert (w, h) == ((13, 10) if mode == "width" else (10, 13))
    assert (left, top) == ((143, 0) if mode == "width" else (0, 143))


def test_positions_reach_from_edge_to_edge():
    for place, expected in ((0.0, 0), (numpy.nextafter(numpy.float32(1), numpy.float32(0)), 100 - 50)):
        sizes = [0.25, 0.5] * ATTEMPTS  # a quarter of the area, square
        assert random_box(100, 100, (0.0, 1.0), [float(place)] * 2 + sizes) == (expected, expected, 50, 50)
