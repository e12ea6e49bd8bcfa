"""One training step of ResNet-50 and WideResNet-50-2 at true size (224x224, batch 8), before and after the switch.

python -m pufferfish_bench.bench.step
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import counting, low_rank, optimizers
from pufferfish_bench.bench import interleaved
from pufferfish_bench.main import config_dir
from pufferfish_bench.models.bottleneck import ResNet50
from pufferfish_bench.report import tables
from pufferfish_bench.speech import spoken_errors

CLASSES, ROUNDS = 1000, 7
NETS = ("resnet50", "wrn50_2")


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def stepper(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = optimizers.sgd(model, momentum=0.9, nesterov=False, weight_decay=1e-4, decay_vectors=False)
    return partial(step, model.train(), optimizer, images, labels)


def measure(*, rounds: int, out: Path, batch_size: int = 8, image_size: int = 224, width: float = 1.0) -> None:
    """Print the table and write the figures to `out`; nets of another `width` than 1 are so many times as wide."""
    torch.manual_seed(1)
    images, labels = torch.randn(batch_size, 3, image_size, image_size), torch.randint(CLASSES, (batch_size,))
    table = tables.table(
        "net", "parameters", "after", "MACs", "after", "seconds a step", "after", "times as fast", "MACs ratio", "SVD seconds",
        title=f"one step at {image_size}x{image_size}, batch {batch_size}, before and after the switch",
    )  # fmt: skip
    figures = {}
    for name in NETS:
        config = OmegaConf.load(Path(config_dir()) / "model" / f"{name}.yaml")
        before = ResNet50(classes=CLASSES, width=width * config.width, inner_width=config.inner_width)
        after = copy.deepcopy(before)
        start = time.perf_counter()
        low_rank.factorise(after, low_rank.choose(after, **config.low_rank).ranks)
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


def main(words: Sequence[str]) -> None:
    measure(**vars(interleaved.arguments("step", __doc__, rounds=ROUNDS).parse_args(words)))


if __name__ == "__main__":
    with spoken_errors():
        main(sys.argv[1:])
