"""Images drawn from a seed, so that every method can be tried with no data set at all; knows nothing of batches or training."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 32  # pixels a side
CENTRE = 5.0  # pixels a shape may sit off the middle, along each axis
RADIUS = (7.0, 12.0)  # pixels
ROTATION = math.radians(15)  # at most: a square must not become a diamond, nor horizontal bars diagonal ones
BRIGHTNESS = (0.25, 0.75)  # of the middle between the two colours of an image; 1 is white
CONTRAST = (0.12, 0.6)  # distance of those two colours in RGB: the low end is what makes an image hard
DISTRACTOR = (1.5, 4.5)  # pixels: half the sides of the box in a third colour that may cover part of the shape
GRADIENT = 0.4  # light gained or lost at the rim, at most
NOISE = (0.02, 0.12)  # standard deviation over the pixels of one image

COLOUR = 1.0
POLARITY = 0.0
BIAS = 0.0
BOXCOL = (0, 1)
Shape = Callable[[Tensor, Tensor], Tensor]


def disc(x: Tensor, y: Tensor) -> Tensor:
    return 0.9 - torch.hypot(x, y)


def ring(x: Tensor, y: Tensor) -> Tensor:
    return 0.22 - (torch.hypot(x, y) - 0.7).abs()


def square(x: Tensor, y: Tensor) -> Tensor:
    return 0.78 - torch.maximum(x.abs(), y.abs())


def triangle(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 - torch.maximum(y, x.abs() * (math.sqrt(3) / 2) - y / 2)  # equilateral, its apex up: y grows downwards


def plus(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y.abs()
    return torch.minimum(0.25 - torch.minimum(x, y), 0.95 - torch.maximum(x, y))


def cross(x: Tensor, y: Tensor) -> Tensor:
    return plus(*turned(x, y))


def horizontal_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(y))


def vertical_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(x))


def diagonal_bars(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(square(x, y), stripes(turned(x, y)[0]))


def checkerboard(x: Tensor, y: Tensor) -> Tensor:
    a, b = stripes(x), stripes(y)
    return torch.minimum(square(x, y), torch.maximum(torch.minimum(a, b), -torch.maximum(a, b)))


def stripes(x: Tensor) -> Tensor:
    """Positive and negative bands of equal width across x, two and a half periods to a square."""
    period = 0.624
    return ((x / period).remainder(1) - 0.5).abs() * period - period / 4


def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates turned by an eighth."""
    return (x + y) * math.sqrt(0.5), (y - x) * math.sqrt(0.5)


# each gives the depth of a point under the shape's edge, negative outside, for a shape of radius one
SHAPES: tuple[Shape, ...] = (
    disc,
    ring,
    square,
    triangle,
    plus,
    cross,
    horizontal_bars,
    vertical_bars,
    diagonal_bars,
    checkerboard,
)
CLASSES = tuple(shape.__name__ for shape in SHAPES)


def synthetic_images(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) of uint8 and their int64 labels, balanced and shuffled: a pure function of both arguments.

    Only the shape depends on the class: place, size, colours, light and noise are drawn alike for all, and a mirrored
    image is an image of its own class. Global random state is neither read nor changed.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, channels: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, channels, 1, 1, generator=random)

    def normal(channels: int, side: int) -> Tensor:
        return torch.randn(count, channels, side, side, generator=random)

    labels = torch.randperm(count, generator=random) % len(SHAPES)

    radius = uniform(*RADIUS)
    x, y = placed(uniform(-CENTRE, CENTRE), uniform(-CENTRE, CENTRE), uniform(-ROTATION, ROTATION))
    x = x * uniform(-1, 1).sign()  # diagonal bars lean either way
    depth = torch.empty_like(x)
    for label, shape in enumerate(SHAPES):
        chosen = labels == label
        depth[chosen] = shape(x[chosen] / radius[chosen], y[chosen] / radius[chosen])

    middle = uniform(*BRIGHTNESS, channels=3)
    direction = normal(3, 1) * COLOUR + POLARITY * uniform(-1, 1).sign() + BIAS
    difference = direction / direction.norm(dim=1, keepdim=True) * uniform(*CONTRAST)
    images = middle + difference * (coverage(depth * radius) - 0.5)  # which of the two colours is in front is even odds

    x, y = placed(uniform(-SIZE / 2, SIZE / 2), uniform(-SIZE / 2, SIZE / 2), uniform(0, math.pi))
    box = coverage(torch.minimum(uniform(*DISTRACTOR) - x.abs(), uniform(*DISTRACTOR) - y.abs()))
    images += (uniform(*BOXCOL, channels=3) - images) * box

    x, _ = placed(torch.zeros(()), torch.zeros(()), uniform(0, 2 * math.pi))
    images *= 1 + uniform(0, GRADIENT) * x / (SIZE / 2)
    images += normal(3, SIZE) * uniform(*NOISE)
    return (images * 255).round_().clamp_(0, 255).to(torch.uint8), labels


def placed(across: Tensor, down: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of every pixel, (count, 1, SIZE, SIZE), about a point off the middle and turned by the angle."""
    pixels = torch.arange(SIZE) - (SIZE - 1) / 2
    x, y = pixels - across, pixels[:, None] - down
    return x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()


def coverage(depth: Tensor) -> Tensor:
    """How much of each pixel a shape covers, from its depth in pixels: a soft edge one pixel wide."""
    return (depth + 0.5).clamp(0, 1)
