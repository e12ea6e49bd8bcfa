"""Gates: what must be true of the runs before they can test a claim about quality. Pure functions of records.

A miniature in which the full-rank net has not learned its training set compares capacities, one whose SVD keeps no more than
it would keep of a random matrix cuts noise, and one that hardly shrinks the net tests nothing. Claims that name a gate which
does not hold are "not tested".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records.record import Record

Records = Mapping[str, Sequence[Record]]  # by cell
NOT_MEASURED = "a run that the gates need is missing"
KNOWN = {"vanilla", "low_rank", "model", "train_accuracy", "levelled", "energy", "compression_factor"}


@dataclass(frozen=True)
class Finding:
    """One gate, measured."""

    gate: str
    measured: str
    needed: str
    failure: str = ""  # why it does not hold, in a few words; empty: it holds


@dataclass(frozen=True)
class Gates:
    """The gates of claims about one model, from the entry of `gates:` in conf/table/*.yaml."""

    name: str
    vanilla: str  # the cell of the full-rank net
    low_rank: str  # the cell of the net that was factorised
    train_accuracy: float | None  # percent that the full-rank net must reach on its training set, or ...
    levelled: float  # ... its training loss falls by less than this fraction in the last tenth of its epochs
    energy: float | None  # the kept energy must be this fraction of the way from that of a random layer to 1; None: no SVD
    compression: float  # the paper's compression, full-rank parameters over low-rank ones
    compression_factor: float  # ours must be within this factor of it

    @classmethod
    def parse(cls, name: str, own: Mapping[str, Any], models: Mapping[str, Any]) -> "Gates":
        """`models` holds the paper's parameter counts, by model and net; `net` is hybrid if it is not given."""
        if differing := (set(own) - {"net"}) ^ KNOWN:
            listed = ", ".join(sorted(differing))
            raise InputError(f"gates: {name}: needs exactly {', '.join(sorted(KNOWN))}; missing or unknown: {listed}")
        nets = ("vanilla", own.get("net", "hybrid"))
        if not set(nets) <= set(models.get(own["model"], ())):
            raise InputError(f"gates: {name}: model: {own['model']} has no parameter counts in the paper's numbers")
        full, low = (models[own["model"]][net]["params"] for net in nets)
        settings = {key: value for key, value in own.items() if key not in ("model", "net")}
        return cls(name=name, compression=full / low, **settings)

    def findings(self, records: Records) -> list[Finding]:
        """All gates, measured on the records of the two cells; empty if one of them was not run."""
        vanilla, low_rank = records[self.vanilla], records[self.low_rank]
        if not (vanilla and low_rank):
            return []
        kept = [] if self.energy is None else [self.keeps(low_rank, self.energy)]
        return [self.fits(vanilla), *kept, self.compresses(vanilla, low_rank)]

    def fits(self, vanilla: Sequence[Record]) -> Finding:
        """Whether the full-rank net has learned its training set, or learns no more."""
        gate = f"{self.vanilla} fits its training set"
        falls = [fall for record in vanilla if (fall := loss_fall(record)) is not None]
        accuracies = [accuracy for record in vanilla if (accuracy := record.summary.get("train_accuracy")) is not None]
        fall, accuracy = (fmean(values) if len(values) == len(vanilla) else None for values in (falls, accuracies))
        measured = [f"training accuracy {accuracy:.1f} %"] if accuracy is not None else []
        measured += [f"loss {-100 * fall:+.1f} %"] if fall is not None else []
        needed = f"loss above -{100 * self.levelled:g} % in the last tenth of the epochs"
        if self.train_accuracy is not None:
            needed = f"training accuracy >= {self.train_accuracy:g} %, or {needed}"
        fitted = accuracy is not None and self.train_accuracy is not None and accuracy >= self.train_accuracy
        holds = fitted or (fall is not None and fall < self.levelled)
        return Finding(gate, ", ".join(measured) or "not recorded", needed, "" if holds else "vanilla underfits")

    def keeps(self, low_rank: Sequence[Record], least: float) -> Finding:
        """Whether the truncation kept clearly more than it would keep of random layers."""
        gate = f"{self.low_rank} keeps more energy than random layers"
        needed = f">= {least:g} of the way from random to 1"
        energies = [energy for record in low_rank for energy in layer_energies(record)]
        if not energies or any(random is None for _, random in energies):
            return Finding(gate, "not recorded", needed, "kept energy not recorded")
        kept, random = (fmean(column) for column in zip(*energies, strict=True))
        holds = kept >= random + least * (1 - random)
        return Finding(gate, f"{kept:.2f} (random: {random:.2f})", needed, "" if holds else "the SVD cuts noise")

    def compresses(self, vanilla: Sequence[Record], low_rank: Sequence[Record]) -> Finding:
        """Whether the net shrinks about as much as the paper's."""
        ratio = vanilla[0].summary["parameters"] / low_rank[0].summary["parameters"]
        factor = max(ratio / self.compression, self.compression / ratio)
        measured, needed = f"{ratio:.2f}x (paper: {self.compression:.2f}x)", f"within a factor of {self.compression_factor:g}"
        failure = "" if factor <= self.compression_factor else "another compression"
        return Finding(f"{self.low_rank} is as much smaller as the paper's", measured, needed, failure)


def loss_fall(record: Record) -> float | None:
    """By which fraction the mean training loss of the last tenth of the epochs is below that of the tenth before."""
    losses = [row["loss"] for row in record.rows if "loss" in row]
    tenth = max(1, len(losses) // 10)
    if len(losses) < 2 * tenth:
        return None
    before, last = fmean(losses[-2 * tenth : -tenth]), fmean(losses[-tenth:])
    return (before - last) / before if before > 0 else 0.0


def layer_energies(record: Record) -> list[tuple[float, float | None]]:
    """For each factorised layer, the kept energy and that of a random layer, if they were recorded."""
    layers = [layer for operation in record.run["operations"] for layer in operation["layers"].values()]
    return [(layer["energy"], layer.get("random_energy")) for layer in layers if "energy" in layer]


def failures(findings: Sequence[Finding]) -> str:
    """Why a claim is not tested, in a few words; empty if all gates were measured and hold."""
    return ", ".join(finding.failure for finding in findings if finding.failure) if findings else NOT_MEASURED
