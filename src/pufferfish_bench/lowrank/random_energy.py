"""The energy that truncation keeps of a random matrix: what a layer must exceed before its SVD says anything about training.

The squared singular values of a large matrix of independent entries follow the Marchenko-Pastur law. Let c be the aspect ratio
(the shorter side over the longer one), and write a squared singular value as 1 + c - 2 sqrt(c) cos(angle), for an angle from 0
to pi. The density of the angle is 2 / pi sin^2(angle) / value; the density of the energy is this times the value.
"""

import math

import torch
from torch import nn

from pufferfish_bench.lowrank.kinds import matrix_shapes

POINTS = 20_001  # of the numerical integral


def random_energy(shape: tuple[int, int], rank: int) -> float:
    """The expected fraction of energy that the best approximation of this rank keeps of a random matrix of this shape."""
    short, long = sorted(shape)
    if rank >= short:
        return 1.0
    ratio = short / long
    angles = torch.linspace(0, math.pi, POINTS, dtype=torch.float64)
    values = 1 + ratio - 2 * math.sqrt(ratio) * angles.cos()
    density = (
        2 / math.pi * angles.sin().square() / values.clamp(min=1e-12)
    )  # a square matrix has a value of 0, where sin is 0 too
    below = torch.cumulative_trapezoid(density, angles)  # the fraction of singular values below an angle, from the second one on
    first_kept = int(torch.searchsorted(below / below[-1], 1 - rank / short)) + 1
    angle = float(angles[min(first_kept, POINTS - 1)])
    return 1 - (angle - math.sin(angle) * math.cos(angle)) / math.pi


def random_layer_energy(layer: nn.Module, rank: int) -> float:
    """The same for a layer whose weights are random; if it has several matrices, they count by their size."""
    shapes = list(matrix_shapes(layer).values())
    sizes = [out * inputs for out, inputs in shapes]
    shares = [random_energy(shape, rank) for shape in shapes]
    return sum(size * share for size, share in zip(sizes, shares, strict=True)) / sum(sizes)
