"""How the cost of a step grows with the width of ResNet-18 and with the batch: vanilla and hybrid, both as a run has them."""

import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from pufferfish_bench.bench import as_in_a_run, interleaved
from pufferfish_bench.bench.nets import cross_entropy
from pufferfish_bench.bench.row import Row

QUICK = {"rounds": 1, "widths": (0.125, 0.25, 0.5), "batch_sizes": (32, 128)}


def measure(
    *, rounds: int = 3, widths: Sequence[float] = (0.125, 0.25, 0.5, 1.0), batch_sizes: Sequence[int] = (32, 128, 512)
) -> tuple[list[Row], dict[str, Any]]:
    """No rows: the study has no target."""
    points = []
    for width in widths:
        torch.manual_seed(1)
        nets = as_in_a_run.nets("model=resnet18", f"model.net.width={width}")
        for batch_size in batch_sizes:
            images, labels = as_in_a_run.images(batch_size, 32, nets.settings["net"]["classes"])
            loss = partial(cross_entropy, images, labels)
            work = {name: as_in_a_run.stepper(model, nets.optimizer, loss) for name, model in nets.named().items()}
            taken = interleaved.seconds(work, rounds=rounds)
            medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
            gain = interleaved.ratio(taken["vanilla"], taken["hybrid"])
            limit = nets.macs_ratio(images[:1])
            points.append({"width": width, "batch_size": batch_size, **medians, "times_as_fast": gain, "macs_ratio": limit})
    pays = {
        str(size): paying_width([(p["width"], p["times_as_fast"]) for p in points if p["batch_size"] == size])
        for size in batch_sizes
    }
    return [], {"points": points, "pays_from_width": pays}


def paying_width(gains: Sequence[tuple[float, float]]) -> float | None:
    """The smallest width from which on the hybrid net is faster, interpolated on a logarithmic scale of widths.

    The smallest measured width if it is faster at all of them; None if it is not faster at the largest.
    """
    gains = sorted(gains)
    if gains[-1][1] <= 1:
        return None
    for (narrow, slower), (wide, faster) in reversed(list(pairwise(gains))):
        if slower <= 1 < faster:
            part = (1 - slower) / (faster - slower)
            return math.exp(math.log(narrow) + part * (math.log(wide) - math.log(narrow)))
    return gains[0][0]
