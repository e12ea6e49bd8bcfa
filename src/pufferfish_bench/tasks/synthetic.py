"""Images drawn from a seed, so that every method can be tried with no data set at all; knows nothing of batches or training."""

import math

import torch
from torch import Tensor

SIZE = 32  # pixels a side
CENTRE = 4.5  # pixels a shape may sit off the middle, along each axis
RADIUS = (8.0, 13.0)  # pixels
PERIOD = 0.624  # radii from bar to bar: two and a half to a square, so that three bars fit
ROTATION = math.radians(15)  # at most: a plus must not become a cross, nor horizontal bars diagonal ones
BRIGHTNESS = (0.3, 0.7)  # midway between the shape's colour and its ground's, each channel apart; 1 is full
CONTRAST = (0.0, 0.9)  # distance of those two colours in RGB: the low end hides the shape, so no net gets all right
TINT = 0.3  # a shape is lighter than its ground; by how much differs between the channels
DISTRACTOR = (1.5, 4.5)  # pixels: half the sides of a box that may cover part of the shape
DISTRACTOR_BRIGHTNESS = (0.2, 0.8)
GRADIENT = 0.3  # light gained on one side and lost on the other, at most
NOISE = (0.04, 0.2)  # standard deviation over the pixels of one image

# A shape of radius one is the depth of each point below its edge, negative outside it; y grows downwards.


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
    """Positive and negative bands of equal width across x, a positive one in the middle."""
    return ((x / PERIOD).remainder(1) - 0.5).abs() * PERIOD - PERIOD / 4


def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates turned by an eighth."""
    return (x + y) * math.sqrt(0.5), (y - x) * math.sqrt(0.5)


SHAPES = (
    *(disc, ring, square, triangle, plus, cross),
    *(horizontal_bars, vertical_bars, diagonal_bars, checkerboard),
)
CLASSES = tuple(shape.__name__ for shape in SHAPES)


def synthetic_images(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 32, 32) of uint8 and their int64 labels, balanced and shuffled: a pure function of both arguments.

    Only the shape tells the class: place, size, colours, light and noise are drawn alike for all, and the mirror image
    of a shape is of its own class. Global random state is neither read nor changed.
    """
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, channels: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, channels, 1, 1, generator=random)

    def normal(side: int) -> Tensor:
        return torch.randn(count, 3, side, side, generator=random)

    def frame(offset: float, angle: float) -> tuple[Tensor, Tensor]:
        """Coordinates of every pixel, (count, 1, SIZE, SIZE), about a point so far off the middle and turned so far at most."""
        pixels = torch.arange(SIZE) - (SIZE - 1) / 2
        x, y = pixels - uniform(-offset, offset), pixels[:, None] - uniform(-offset, offset)
        turn = uniform(-angle, angle)
        return x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()

    labels = torch.randperm(count, generator=random) % len(SHAPES)

    x, y = frame(CENTRE, ROTATION)
    radius = uniform(*RADIUS)
    mirror = 1 - 2 * uniform(0, 2).floor()  # diagonal bars lean either way
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
    """How much of each pixel is covered, from its depth in pixels below the edge: the edge is soft, one pixel wide."""
    return (depth + 0.5).clamp(0, 1)
