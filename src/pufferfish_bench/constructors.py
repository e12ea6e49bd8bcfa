"""What may be built from a record, which somebody else may have written. Names only: nothing is imported to refuse one.

The lists hold what conf/ names in its groups model, method (with its triggers), reducer and dataset. A new file there goes in
here as well.
"""

from collections.abc import Collection
from typing import Any

from pufferfish_bench.errors import InputError
from pufferfish_bench.visible import visible

MODELS = (
    "pufferfish_bench.models.bottleneck.ResNet50",
    "pufferfish_bench.models.lstm.LanguageModel",
    "pufferfish_bench.models.resnet.ResNet18",
    "pufferfish_bench.models.transformer.Transformer",
    "pufferfish_bench.models.vgg.vgg11",
    "pufferfish_bench.models.vgg.vgg19",
    "pufferfish_bench.models.vgg.vgg19_lth",
)
TRIGGERS = (
    "pufferfish_bench.triggers.fixed_epoch",
    "pufferfish_bench.triggers.masks_settled",
    "pufferfish_bench.triggers.plateau",
    "pufferfish_bench.triggers.stable_rank_settled",
)
REDUCERS = (
    "pufferfish_bench.reducers.ddp.DDP",
    "pufferfish_bench.reducers.ddp.NarrowDDP",
    "pufferfish_bench.reducers.ddp.PowerDDP",
    "pufferfish_bench.reducers.flat.Narrow",
    "pufferfish_bench.reducers.flat.allreduce",
    "pufferfish_bench.reducers.powersgd.PowerSGD",
    "pufferfish_bench.reducers.quantised.StochasticBinary",
    "pufferfish_bench.reducers.signum.Signum",
    "pufferfish_bench.reducers.silent.Silent",
    "pufferfish_bench.reducers.topk.TopK",
)
METHODS = (
    "pufferfish_bench.core.Method",
    "pufferfish_bench.methods.eb_train.EBTrain",
    "pufferfish_bench.methods.lth.LTH",
    "pufferfish_bench.methods.pufferfish.Pufferfish",
)
TASKS = (
    "pufferfish_bench.tasks.cifar10.cifar10",
    "pufferfish_bench.tasks.embedded.images",
    "pufferfish_bench.tasks.embedded.text",
    "pufferfish_bench.tasks.imagenet.imagenet",
    "pufferfish_bench.tasks.parallel.multi30k",
    "pufferfish_bench.tasks.parallel.number_words",
    "pufferfish_bench.tasks.wikitext2.wikitext2",
)
# what may stand in a group of a record's settings, at its top or inside
KNOWN = {"model": MODELS, "method": METHODS + TRIGGERS + REDUCERS, "reducer": REDUCERS, "dataset": TASKS}


def vet(group: str, settings: Any, allowed: Collection[str] = ()) -> None:
    """Refuse settings of a record's group that name anything outside the group's list and what the user allows."""
    name = settings.get("_target_") if isinstance(settings, dict) else None
    if not isinstance(name, str):
        raise InputError(f"the record's {group} does not say what it is (_target_)")
    refuse_references(group, settings)
    for place, value in walk(settings, group):
        if place.endswith("._target_") and value not in KNOWN[group] and value not in allowed:
            shown = visible(str(value))
            raise InputError(
                f"the record's {visible(place)} is {shown}, which is nothing that belongs to a {group} here, and would be run; "
                f"if you trust it, give --allow {shown}"
            )


def refuse_references(group: str, settings: Any) -> None:
    """Settings are recorded as values. A reference would be looked up here, and could hide a name from `vet`."""
    for place, value in walk(settings, group):
        if isinstance(value, str) and "${" in value:
            raise InputError(f"the record's {visible(place)} has a reference, which no run writes: {visible(value)}")


def walk(settings: Any, place: str) -> list[tuple[str, Any]]:
    """All keys and values of nested settings, each with its place."""
    if isinstance(settings, dict):
        inside = [(f"{place}.{key}", value) for key, value in settings.items()]
        keys = [(place, key) for key in settings]
    elif isinstance(settings, list):
        inside, keys = [(f"{place}.{number}", value) for number, value in enumerate(settings)], []
    else:
        return []
    return [*keys, *inside, *(found for here, value in inside for found in walk(value, here))]
