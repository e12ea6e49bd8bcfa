"""The rows of the benchmark with their targets, and the limits that are known without a measurement. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

Direction = Literal[">=", "<=", "<"]


@dataclass(frozen=True)
class Target:
    """What a ratio must reach: with ">=" how many times as fast ours is, else the share of the rival's cost that ours has."""

    row: str  # the name of the row
    direction: Direction
    number: float
    limit: float | None = None  # None: none is known, or it is measured or counted with the row
    of_limit: bool = False  # `number` is a fraction of the limit

    def resolved(self, limit: float | None) -> float:
        """The number that a ratio is compared with."""
        if not self.of_limit:
            return self.number
        if limit is None:
            raise ValueError(f"the target of {self.row!r} is a fraction of its limit, which is missing")
        return self.number * limit


TARGETS = {
    "resnet18": Target("ResNet-18 step, hybrid against vanilla", ">=", 2.15),
    "resnet18_textbook": Target("ResNet-18 step, hybrid against a textbook vanilla net", ">=", 2.6),
    "vgg19": Target("VGG-19 step, hybrid against vanilla", ">=", 1.33),
    "resnet50": Target("ResNet-50 step, hybrid against vanilla", ">=", 1.10),
    "wrn50_2": Target("WideResNet-50-2 step, hybrid against vanilla", ">=", 1.10),
    "resnet18_narrow": Target("ResNet-18 step at width 1/4, hybrid against vanilla", ">=", 1.6),
    "lstm": Target("LSTM layer, low-rank against torch's", ">=", 1.85),
    "transformer": Target("Transformer step, hybrid against vanilla", ">=", 0.85, of_limit=True),
    "epoch": Target("epoch through the trainer", "<=", 1.02, limit=1.0),
    "cifar": Target("CIFAR-10 batches", ">=", 15.0),
    "loader_exact": Target("ImageNet loader, exact decoding", ">=", 1.4),
    "loader_scaled": Target("ImageNet loader, scaled decoding", ">=", 2.5),
    "svd_resnet18": Target("SVD switch of ResNet-18", ">=", 3.0),
    "svd_resnet50": Target("SVD switch of ResNet-50", ">=", 3.0),
    "svd_wrn50_2": Target("SVD switch of WideResNet-50-2", ">=", 3.0),
    "powersgd_2": Target("PowerSGD encode and decode, rank 2", "<=", 0.65),
    "powersgd_4": Target("PowerSGD encode and decode, rank 4", "<=", 0.65),
    "signum": Target("Signum encode and decode, 8 workers", "<=", 0.15),
    "flat": Target("flat engine without communication", "<=", 1.02, limit=1.0),
    "startup": Target("pufferfish-run --cfg job", "<=", 2.5),
    "memory": Target("peak memory of a run after the switch", "<", 1.0),
}
