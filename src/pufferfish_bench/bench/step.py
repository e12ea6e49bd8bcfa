"""One training step of ResNet-50 and WideResNet-50-2 at true size (224x224, batch 8), before and after factorisation."""

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.bench import interleaved
from pufferfish_bench.config import yaml_files
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.lowrank import counting
from pufferfish_bench.models.resnet50 import ResNet50
from pufferfish_bench.report import tables
from pufferfish_bench.training import optimizers

CLASSES, ROUNDS = 1000, 7
NETS = ("resnet50", "wrn50_2")


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def stepper(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = optimizers.sgd(model, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=False)
    return partial(step, model.train(), optimizer, images, labels)


def measure(*, out: Path, rounds: int = ROUNDS, batch_size: int = 8, image_size: int = 224, width: float = 1.0) -> None:
    """Print the table and write the numbers to `out`; `width` multiplies the width of the nets."""
    torch.manual_seed(1)
    images, labels = torch.randn(batch_size, 3, image_size, image_size), torch.randint(CLASSES, (batch_size,))
    table = tables.table(
        "net", "parameters", "after", "MACs", "after", "seconds a step", "after", "times as fast", "MACs ratio", "SVD seconds",
        title=f"one step at {image_size}x{image_size}, batch {batch_size}, before and after factorisation",
    )  # fmt: skip
    figures = {}
    for name in NETS:
        config = yaml_files.read(Path(config_dir()) / "model" / f"{name}.yaml")
        net = config["net"]
        before = ResNet50(classes=CLASSES, width=width * net["width"], inner_width=net["inner_width"])
        after = copy.deepcopy(before)
        start = time.perf_counter()
        lowrank.factorise(after, lowrank.choose(after, **config["low_rank"]).ranks)
        svd = time.perf_counter() - start
        taken = interleaved.seconds(
            {net: stepper(model, images, labels) for net, model in (("before", before), ("after", after))}, rounds=rounds
        )
        gain = interleaved.ratio(taken["before"], taken["after"])
        parameters = [counting.parameters(model) for model in (before, after)]
        macs = [counting.macs(model, images[:1])[""] for model in (before, after)]
        medians = [statistics.median(taken[net]) for net in ("before", "after")]
        figures[name] = {"parameters": parameters, "macs": macs, "seconds": taken, "times_as_fast": gain, "svd_seconds": svd}
        table.add_row(
            name, *(f"{count:,}" for count in (*parameters, *macs)), *(f"{median:.2f}" for median in medians), f"{gain:.2f}",
            f"{macs[0] / macs[1]:.2f}", f"{svd:.2f}",
        )  # fmt: skip
    tables.show(table, Console())
    settings = {"batch_size": batch_size, "image_size": image_size, "rounds": rounds}
    interleaved.write(out / "step.json", {"settings": settings, "nets": figures})
