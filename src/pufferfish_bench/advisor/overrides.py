"""The settings of pufferfish-run that choose a method and the layers to factorise. Needs no torch."""

import re
from collections.abc import Collection, Mapping, Sequence

# settings of pufferfish-advise that pufferfish-run does not have, or that mean something else there
OWN = {
    "network", "latency", "workers", "ratios", "layers", "rounds", "quick", "batch", "length", "run", "out", "json", "reducers",
}  # fmt: skip
PLAIN = re.compile(r"[A-Za-z_][\w.]*")

REDUCERS: dict[str, tuple[str, tuple[str, ...]]] = {  # key in conf/advise.yaml -> label, and the settings that choose it
    "allreduce": ("allreduce", ("reducer=allreduce",)),
    "ddp": ("DDP", ("reducer=ddp",)),
    "fp16": ("fp16", ("reducer=fp16",)),
    "powersgd2": ("PowerSGD rank 2", ("reducer=powersgd", "reducer.rank=2")),
    "powersgd4": ("PowerSGD rank 4", ("reducer=powersgd", "reducer.rank=4")),
    "signum": ("Signum (SGD without momentum)", ("reducer=signum", "clip_norm=null")),
    "topk": ("top-k", ("reducer=topk",)),
}


def shared(words: Sequence[str]) -> list[str]:
    """The words of a command line of pufferfish-advise that pufferfish-run understands too."""

    def top(word: str) -> str:
        return re.split(r"[.=@]", word.lstrip("+~"))[0]

    return [word for word in words if top(word) not in OWN | {"hydra"}]


def of_reducer(key: str, *, has_momentum: bool) -> tuple[str, ...]:
    """The settings that choose a reducer; `has_momentum`: the optimizer is one with a setting `momentum`, such as SGD.

    Signum has a momentum of its own, and works with SGD only.
    """
    chosen = REDUCERS[key][1]
    if key != "signum":
        return chosen
    optimizer = () if has_momentum else ("optimizer=sgd", "schedule=steps")
    return (*chosen, *optimizer, "optimizer.momentum=0.0", "schedule.learning_rate=${signum_learning_rate}")


def of_layers(
    ranks: Mapping[str, int], configured: Mapping[str, int], factorable: Collection[str], usual: Mapping[str, int]
) -> tuple[str, ...]:
    """The settings that factorise exactly `ranks`: none if the model's own settings do.

    `configured` is what those factorise, `factorable` all layers that can be, `usual` their ranks by model.low_rank.rank_ratio.
    """
    if dict(ranks) == dict(configured):
        return ()
    kept = ",".join(named(name) for name in factorable if name not in ranks)
    special = ",".join(f"{as_key(name)}:{rank}" for name, rank in ranks.items() if usual.get(name) != rank)
    return (
        "model.low_rank.first=null",
        f"model.low_rank.keep=[{kept}]",
        "model.low_rank.ranks=null",  # also before new ones, which Hydra would merge with the model's own
        *([f"model.low_rank.ranks={{{special}}}"] if special else []),
    )


def as_key(layer: str) -> str:
    """The name of a layer as a key for Hydra, which cannot be quoted: one that a number would not keep becomes a pattern."""
    kept = PLAIN.fullmatch(layer) or layer.isdecimal()
    return layer if kept else f"?{layer[1:]}"


def named(layer: str) -> str:
    """The name of a layer as a value for Hydra: one that looks like a number is quoted."""
    return layer if PLAIN.fullmatch(layer) else f"'{layer}'"
