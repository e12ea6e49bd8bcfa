"""The settings of pufferfish-run that choose a method and the layers to factorise. Needs no torch."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pufferfish_bench.base.errors import InputError

# settings of pufferfish-advise that pufferfish-run does not have, or that the advice itself gives
OWN = {
    "network", "latency", "workers", "ratios", "layers", "rounds", "quick", "batch", "length", "run", "out", "json", "reducers",
    "batch_size",
}  # fmt: skip
PLAIN = re.compile(r"[A-Za-z_][\w.]*")

LABELS = {  # choice of the group reducer -> its label, with the settings that tell it from others
    "allreduce": "allreduce", "ddp": "DDP", "fp16": "{dtype}", "bf16": "{dtype}", "powersgd": "PowerSGD rank {rank}",
    "signum": "Signum (SGD without momentum)", "topk": "top-k {percent:g} %", "sbq": "SBQ",
}  # fmt: skip
COMMON = {"measure_wait", "seed"}  # settings of a reducer that a run sets for all of them


@dataclass(frozen=True)
class Chosen:
    """A reducer to compare: what was chosen, and its settings."""

    choice: str
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        dtype = str(self.settings.get("dtype", "")).replace("bfloat", "bf").replace("float", "fp")
        shown = {**self.settings, "dtype": dtype, "percent": 100 * self.settings.get("share", 0.0)}
        return LABELS[self.choice].format(**shown)

    @property
    def other_optimizer(self) -> bool:
        """Signum has a momentum of its own, and works with SGD only."""
        return self.choice == "signum"

    @property
    def may_cost_accuracy(self) -> bool:
        """Top-k sends only a few of the gradients."""
        return self.choice == "topk"

    def words(self, *, has_momentum: bool) -> tuple[str, ...]:
        """The settings that choose it; `has_momentum`: the optimizer is one with a setting `momentum`, such as SGD."""
        own = {key: value for key, value in self.settings.items() if not key.startswith("_") and key not in COMMON}
        chosen = (f"reducer={self.choice}", *(f"reducer.{key}={value}" for key, value in own.items()))
        if not self.other_optimizer:
            return chosen
        optimizer = () if has_momentum else ("optimizer=sgd", "schedule=steps")
        rate = "schedule.learning_rate=${signum_learning_rate}"
        return (*chosen, "clip_norm=null", *optimizer, "optimizer.momentum=0.0", rate)


def chosen_reducers(nodes: Mapping[str, Mapping[str, Any]], choices: Mapping[str, str]) -> dict[str, Chosen]:
    """The reducers to compare, by their key in the settings; of two equal ones the first. `choices` are those of all groups."""
    found: dict[str, Chosen] = {}
    for key, node in nodes.items():
        choice = choices.get(f"reducer@reducers.{key}", "")
        allowed = [key] if key in ("allreduce", "ddp") else [name for name in LABELS if name not in ("allreduce", "ddp")]
        if choice not in allowed:
            raise InputError(f"reducer@reducers.{key}={choice} cannot be compared; allowed: {', '.join(allowed)}")
        reducer = Chosen(choice, node)
        if reducer.label not in {other.label for other in found.values()}:
            found[key] = reducer
    return found


def shared(words: Sequence[str]) -> list[str]:
    """The words of a command line of pufferfish-advise that pufferfish-run understands too."""

    def top(word: str) -> str:
        return re.split(r"[.=@]", word.lstrip("+~"))[0]

    return [word for word in words if top(word) not in OWN | {"hydra"}]


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
    """The name of a layer as a key for Hydra, which cannot be quoted and would read one that begins with a digit as a number.

    Such a name becomes a pattern that matches it alone: [0].conv, with its brackets escaped.
    """
    kept = PLAIN.fullmatch(layer) or layer.isdecimal()
    return layer if kept else rf"\[{layer[0]}\]{layer[1:]}"


def named(layer: str) -> str:
    """The name of a layer as a value for Hydra: one that looks like a number is quoted."""
    return layer if PLAIN.fullmatch(layer) else f"'{layer}'"
