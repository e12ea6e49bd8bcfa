"""Training steps of the paper's image nets: hybrid against vanilla, both as a run has them, and against a textbook net."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.bench import as_in_a_run, interleaved, profiled, textbook
from pufferfish_bench.bench.as_in_a_run import Nets
from pufferfish_bench.bench.row import Row, compare

QUICK = {"rounds": 2, "large_rounds": 1, "batch_size": 32, "large_batch_size": 2}
TEXTBOOK = "textbook"


def cross_entropy(images: Tensor, labels: Tensor, model: Callable[[Tensor], Tensor]) -> Tensor:
    return F.cross_entropy(model(images), labels)


def measure(
    *,
    rounds: int = 7,
    large_rounds: int = 5,
    batch_size: int = 128,
    large_batch_size: int = 8,
    large_size: int = 224,
    width: float = 1.0,
) -> tuple[list[Row], dict[str, Any]]:
    """`width` multiplies the width of all nets; ResNet-50 and WideResNet-50-2 get `large_batch_size` images of `large_size`."""
    small = partial(compared, rounds=rounds, batch_size=batch_size, size=32)
    large = partial(compared, rounds=large_rounds, batch_size=large_batch_size, size=large_size)
    measured = [
        small("resnet18", ["model=resnet18", f"model.net.width={width}"], rival=TEXTBOOK),
        small("vgg19", ["model=vgg19", f"model.net.width={width}"]),
        large("resnet50", ["model=resnet50", f"model.net.width={width}"]),
        large("wrn50_2", ["model=wrn50_2", f"model.net.width={width}"]),
        small(
            "resnet18_narrow",
            ["model=resnet18", f"model.net.width={width / 4}"],
            more="In channels-last order; profile=cpu is not. ",
        ),
    ]
    return [row for rows, _ in measured for row in rows], {key: value for _, found in measured for key, value in found.items()}


def compared(
    key: str, overrides: Sequence[str], *, rounds: int, batch_size: int, size: int, rival: str | None = None, more: str = ""
) -> tuple[list[Row], dict[str, Any]]:
    """The row of one net, and with the textbook as a further rival a second one."""
    torch.manual_seed(1)
    nets = as_in_a_run.nets(*overrides)
    images, labels = as_in_a_run.images(batch_size, size, nets.settings["net"]["classes"])
    loss = partial(cross_entropy, images, labels)
    work = {name: as_in_a_run.stepper(model, nets.optimizer, loss) for name, model in nets.named().items()}
    if rival:
        work[rival] = textbook.stepper(textbook_net(nets), images.contiguous(), labels)
    taken = interleaved.seconds(work, rounds=rounds)
    profile = {name: profiled.shares(step) for name, step in work.items()}
    limit = nets.macs_ratio(images[:1])
    sizes = f"Batch {batch_size} at {size}x{size}. {more}"
    convolutions = {name: statistics.median(taken[name]) * convolution_share(profile[name]) for name in nets.named()}
    note = (
        f"{sizes}{profiled.sentence('the hybrid step', profile['hybrid'])} Its convolutions alone are "
        f"{convolutions['vanilla'] / convolutions['hybrid']:.2f} times as fast as those of the vanilla net."
    )
    rows = [compare(key, ("hybrid", taken["hybrid"]), ("our vanilla", taken["vanilla"]), limit=limit, note=note)]
    if rival:
        note = sizes + profiled.sentence("the textbook step", profile[rival])
        rows.append(compare(f"{key}_{rival}", ("hybrid", taken["hybrid"]), ("textbook ResNet-18", taken[rival]), note=note))
    return rows, {key: {"seconds": taken, "profile": profile, "macs": nets.macs(images[:1])}}


def convolution_share(profile: dict[str, float]) -> float:
    return sum(share for name, share in profile.items() if "convolution" in name)


def textbook_net(nets: Nets) -> nn.Module:
    """The textbook's ResNet-18 with the same layers and weights as our vanilla net."""
    vanilla = nets.vanilla
    channels = tuple(vanilla.get_submodule(f"layer{stage}.0.conv1").out_channels for stage in range(1, 5))
    model = textbook.TextbookResNet18(nets.settings["net"]["classes"], channels)
    model.load_state_dict(vanilla.state_dict())
    return model
