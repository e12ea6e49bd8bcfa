"""Synthetic images: ten geometric shapes, drawn from a seed, so that every method can be tried without any files."""

import math

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count, Natural, Share
from pufferfish_bench.distributed.world import World
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.tasks.images.tensor_images import task_from_tensors

TEST_SEED = 1 << 40  # different from the training set's; the same in all runs, so that all are evaluated on the same images

SIZE = 32  # pixels per side
CENTRE = 4.5  # largest distance of a shape from the centre, in pixels along each axis
RADIUS = (8.0, 13.0)  # pixels
PERIOD = 0.624  # distance between bars, in radii: a square holds two and a half periods, so three bars
ROTATION = math.radians(15)  # largest angle: a plus must not become a cross, nor horizontal bars diagonal
BRIGHTNESS = (0.3, 0.7)  # mean of the shape's and the background's colour, drawn per channel; 1 is white
CONTRAST = (0.0, 0.9)  # RGB distance of those two colours; near 0 the shape is invisible, so no net reaches 100 %
TINT = 0.3  # how much the contrast varies between channels; a shape is lighter than its background
DISTRACTOR = (1.5, 4.5)  # half the sides, in pixels, of a box that may cover part of the shape
DISTRACTOR_BRIGHTNESS = (0.2, 0.8)
GRADIENT = 0.3  # largest relative change of brightness across the image
NOISE = (0.04, 0.2)  # standard deviation of the pixel noise of an image

# A shape of radius 1 is a function from a point to its depth inside the edge: negative outside. y grows downwards.


def disc(x: Tensor, y: Tensor) -> Tensor:
    return 0.9 - torch.hypot(x, y)


def ring(x: Tensor, y: Tensor) -> Tensor:
    return 0.22 - (torch.hypot(x, y) - 0.7).abs()


def square(x: Tensor, y: Tensor) -> Tensor:
    return 0.78 - torch.maximum(x.abs(), y.abs())


def triangle(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 - torch.maximum(y, x.abs() * (math.sqrt(3) / 2) - y / 2)  # equilateral, apex up


def plus(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y.abs()
    return torch.minimum(0.25 - torch.minimum(x, y), 0.95 - torch.maximum(x, y))


def cross(x: Tensor, y: Tensor) -> Tensor:
    return plus(*rotated(x, y))


def horizontal_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(y))


def vertical_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(x))


def diagonal_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(rotated(x, y)[0]))


def checkerboard(x: Tensor, y: Tensor) -> Tensor:
    a, b = stripes(x), stripes(y)
    return torch.minimum(square(x, y), torch.maximum(torch.minimum(a, b), -torch.maximum(a, b)))


def stripes(x: Tensor) -> Tensor:
    """Alternating positive and negative bands of equal width along x, with a positive one at 0."""
    return ((x / PERIOD).remainder(1) - 0.5).abs() * PERIOD - PERIOD / 4


def rotated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates rotated by 45 degrees."""
    return (x + y) * math.sqrt(0.5), (y - x) * math.sqrt(0.5)


SHAPES = (
    *(disc, ring, square, triangle, plus, cross),
    *(horizontal_bars, vertical_bars, diagonal_bars, checkerboard),
)
CLASSES = tuple(shape.__name__ for shape in SHAPES)


def draw_images(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """uint8 images (count, 3, 32, 32) and int64 labels, balanced and shuffled: a pure function of both arguments.

    Only the shape depends on the class: position, size, colours, light and noise have the same distribution for all classes,
    and a mirrored shape keeps its class. Global random state is neither read nor changed.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, channels: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, channels, 1, 1, generator=random)

    def normal(side: int) -> Tensor:
        return torch.randn(count, 3, side, side, generator=random)

    def frame(offset: float, angle: float) -> tuple[Tensor, Tensor]:
        """Pixel coordinates (count, 1, SIZE, SIZE), with the origin shifted by up to `offset` and rotated by up to `angle`."""
        pixels = torch.arange(SIZE) - (SIZE - 1) / 2
        x, y = pixels - uniform(-offset, offset), pixels[:, None] - uniform(-offset, offset)
        turn = uniform(-angle, angle)
        return x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()

    labels = torch.randperm(count, generator=random) % len(SHAPES)

    x, y = frame(CENTRE, ROTATION)
    radius = uniform(*RADIUS)
    mirror = 1 - 2 * uniform(0, 2).floor()  # diagonal bars lean left or right
    depth = torch.empty_like(x)
    for label, shape in enumerate(SHAPES):
        chosen = labels == label
        unit = 1 / radius[chosen]
        depth[chosen] = shape(x[chosen] * (mirror[chosen] * unit), y[chosen] * unit)

    lighter = 1 + TINT * normal(1)
    contrast = lighter / lighter.norm(dim=1, keepdim=True) * uniform(*CONTRAST)
    images = contrast * (coverage(depth * radius) - 0.5) + uniform(*BRIGHTNESS, channels=3)

    x, y = frame(SIZE / 2, math.pi)
    box = coverage(torch.minimum(uniform(*DISTRACTOR) - x.abs(), uniform(*DISTRACTOR) - y.abs()))
    images += box * (uniform(*DISTRACTOR_BRIGHTNESS, channels=3) - images)

    x, _ = frame(0, math.pi)
    images *= 1 + x * (uniform(0, GRADIENT) / (SIZE / 2))
    images += normal(SIZE).mul_(uniform(*NOISE))
    return images.mul_(255).round_().clamp_(0, 255).to(torch.uint8), labels


def coverage(depth: Tensor) -> Tensor:
    """The covered share of each pixel, given its depth in pixels inside the edge: antialiasing over one pixel."""
    return (depth + 0.5).clamp(0, 1)


def synthetic_images(
    *,
    train_images: Count,
    test_images: Count,
    classes: Count,
    label_smoothing: Share,
    batch_size: Count,
    test_batch_size: Count,
    seed: Natural,
    world: World,
) -> ImageClassification:
    """Classify synthetic images. As with real data, the seed changes order and augmentation, not the images themselves."""
    for name, count in (("train_images", train_images), ("test_images", test_images)):
        if count < 1:
            raise InputError(f"dataset.{name}={count} must be at least 1")
    return task_from_tensors(
        train=draw_images(train_images, seed=0), test=draw_images(test_images, seed=TEST_SEED),
        classes=classes, mean=(0.5,) * 3, std=(0.25,) * 3, label_smoothing=label_smoothing, batch_size=batch_size,
        test_batch_size=test_batch_size, seed=seed, world=world,
    )  # fmt: skip
