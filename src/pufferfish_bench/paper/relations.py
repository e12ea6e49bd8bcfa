"""The claims of the paper as relations between two cells, from conf/table/*.yaml. Each kind of claim knows how it is decided."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.units import show_bits
from pufferfish_bench.paper import verdicts
from pufferfish_bench.paper.quantities import Quantity
from pufferfish_bench.paper.verdicts import Judgement, Sample

DIRECTIONS = ("higher", "lower")
KNOWN = {
    "claim", "quantity", "of", "is", "than", "than_quantity", "kind", "margin", "ratio", "difference", "gates", "ours", "over",
    "bits",
}  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What a claim is decided by: our values of its two ends, and what the paper says about them."""

    quantity: Quantity
    of: Sample | None
    than: Sample | None
    paper: float | None = None  # its ratio or difference, printed or computed from its numbers of the two cells
    deviation: float | None = None  # of a difference, by the paper's spreads
    full_size: bool = True  # whether our nets have the sizes of the paper's


@dataclass(frozen=True, kw_only=True)
class Relation(ABC):
    """A quantity is higher, or lower, in one cell than in another."""

    has_seeds: ClassVar[bool]  # whether the claim is about values that differ from seed to seed

    claim: str
    quantity: str
    of: str
    direction: str
    than: str
    than_quantity: str  # of the second cell; mostly the same as `quantity`
    margin: float = 0.0  # tolerance in favour of the claim, chosen by us: "as accurate within 1 point"
    margin_is_share: bool = False  # relative to the second cell's value
    ratio: str | None = None  # key of the paper's (than / of), if it does not follow from its numbers of the two cells
    difference: str | None = None  # key of the paper's (of - than), likewise
    gates: str | None = None  # the entry of the table's gates that must hold before the claim is tested
    is_ours: bool = False  # a question of ours, which the paper does not answer in words
    bits: float | None = None  # the rate of the links at which a claim over bandwidth is tested, in bits per second

    @property
    def ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Cell and quantity of both ends."""
        return (self.of, self.quantity), (self.than, self.than_quantity)

    @property
    def plain_label(self) -> str:
        """The claim, with the rate at which it is tested."""
        return self.claim if self.bits is None else f"{self.claim}, at {show_bits(self.bits)}"

    @property
    def label(self) -> str:
        return f"{self.plain_label} (ours)" if self.is_ours else self.plain_label

    @abstractmethod
    def is_ratio(self, quantity: Quantity) -> bool:
        """Whether the two ends are compared by their ratio; else by their difference."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement:
        """What our runs say about the claim, not yet corrected for the number of claims."""


class Tested(Relation):
    """A claim about values that differ from seed to seed: decided by a test."""

    has_seeds = True

    def is_ratio(self, quantity: Quantity) -> bool:
        return quantity.is_time

    def judge(self, evidence: Evidence) -> Judgement:
        return verdicts.of_relation(
            evidence.of,
            self.direction,
            evidence.than,
            margin=self.margin,
            share=self.margin_is_share,
            is_time=evidence.quantity.is_time,
            effect=evidence.paper,
            deviation=evidence.deviation,
        )


class Counted(Relation):
    """A claim about parameters, MACs or bytes, which are counted: decided exactly, without seeds and without a p value."""

    has_seeds = False

    def is_ratio(self, quantity: Quantity) -> bool:
        return self.difference is None

    def judge(self, evidence: Evidence) -> Judgement:
        printed = evidence.paper if self.ratio or self.difference else None
        judgement = verdicts.of_counts(
            evidence.of,
            self.direction,
            evidence.than,
            printed=printed,
            is_ratio=self.is_ratio(evidence.quantity),
            as_printed=evidence.quantity.as_printed,
        )
        if printed is not None and not evidence.full_size:
            return judgement.without_verdict(verdicts.OTHER_PROFILE)
        return judgement


KINDS = {"tested": Tested, "counted": Counted}  # the words of conf/table


def parse(own: Mapping[str, Any]) -> Relation:
    """A relation of the class that its `kind` selects, from an entry of `relations:` in conf/table/*.yaml."""
    claim = own["claim"]
    if unknown := sorted(set(own) - KNOWN):
        raise InputError(f"{claim!r}: {', '.join(unknown)}: not known; allowed: {', '.join(sorted(KNOWN))}")
    kind = own.get("kind", "tested")
    for name, word, allowed in (("is", own["is"], DIRECTIONS), ("kind", kind, KINDS)):
        if word not in allowed:
            raise InputError(f"{claim!r}: {name}: {word} is not known; allowed: {', '.join(allowed)}")
    margin = str(own.get("margin", 0.0))
    share = margin.endswith("%")
    granted = float(margin.removesuffix("%")) / (100 if share else 1)
    if granted and not KINDS[kind].has_seeds:
        raise InputError(f"{claim!r}: counts are compared exactly: remove margin")
    return KINDS[kind](
        claim=claim,
        quantity=own["quantity"],
        of=own["of"],
        direction=own["is"],
        than=own["than"],
        than_quantity=own.get("than_quantity", own["quantity"]),
        margin=granted,
        margin_is_share=share,
        ratio=own.get("ratio"),
        difference=own.get("difference"),
        gates=own.get("gates"),
        is_ours=own.get("ours", False),
        bits=own.get("bits"),
    )
