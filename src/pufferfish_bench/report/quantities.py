"""What a record can be asked for: its name for the reader, which way is better, how it is read. Compares nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pufferfish_bench.errors import InputError
from pufferfish_bench.records import Row
from pufferfish_bench.report.numbers import rounded

Record = Mapping[str, Any]
Reader = Callable[[Record, Sequence[Row]], float | None]


@dataclass(frozen=True)
class Quantity:
    """A number of a finished run. Counts are equal if they are shown alike; times compare where machines are alike."""

    label: str
    higher_is_better: bool
    read: Reader
    show: Callable[[float], str]
    is_time: bool = False


def of_summary(name: str) -> Reader:
    return lambda record, rows: record["summary"].get(name)


def counted(figure: str) -> Reader:
    """Of the net that was counted, or of the one that a run ended with."""

    def read(record: Record, rows: Sequence[Row]) -> float | None:
        return record["counted"].get(figure) if "counted" in record else record["summary"].get(figure)

    return read


def surgery(record: Record, rows: Sequence[Row]) -> float | None:
    seconds = [operation["seconds"] for operation in record["operations"]]
    return sum(seconds) if seconds else None


def in_all(record: Record, rows: Sequence[Row]) -> float | None:
    """All epochs and what was done to the net between them, as the paper's times include the SVD; without the tests."""
    return record["summary"]["seconds"] + (surgery(record, rows) or 0.0)


def of_epoch(*sections: str) -> Reader:
    """Seconds of an epoch in these sections of its steps: of the last phase, from the steps that are timed."""

    def read(record: Record, rows: Sequence[Row]) -> float | None:
        step = record["summary"]["step"]
        return rows[-1]["steps"] * sum(step.get(section, 0.0) for section in sections) if step else None

    return read


def decimals(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def percent(label: str, name: str) -> Quantity:
    return Quantity(label, True, of_summary(name), decimals(2))


def perplexity(part: str) -> Quantity:
    return Quantity(f"{part} perplexity", False, of_summary(f"{part}_ppl"), decimals(2))


def seconds(label: str, read: Reader, *, digits: int = 3) -> Quantity:
    return Quantity(label, False, read, decimals(digits), is_time=True)


QUANTITIES = {
    "test_accuracy": percent("test accuracy, %", "test_accuracy"),
    "test_top5": percent("top-5 test accuracy, %", "test_top5"),
    "test_loss": Quantity("test loss", False, of_summary("test_loss"), decimals(3)),
    "train_ppl": perplexity("train"),
    "val_ppl": perplexity("val"),
    "test_ppl": perplexity("test"),
    "val_bleu": percent("val BLEU", "val_bleu"),
    "test_bleu": percent("test BLEU", "test_bleu"),
    "parameters": Quantity("parameters", False, counted("parameters"), decimals(0)),
    "nonzero_parameters": Quantity("parameters left", False, counted("nonzero_parameters"), decimals(0)),
    "layer_macs": Quantity("MACs", False, counted("macs"), decimals(0)),
    "macs": Quantity("MACs, paper's way", False, counted("macs_as_in_paper"), rounded),
    "seconds_per_epoch": seconds("seconds an epoch", of_summary("seconds_per_epoch")),
    "seconds": seconds("seconds in all", in_all, digits=1),
    "svd_seconds": seconds("seconds of the factorisation", surgery),
    "encode_seconds": seconds("seconds an epoch, encoding", of_epoch("encode")),
    "decode_seconds": seconds("seconds an epoch, decoding", of_epoch("decode")),
    "coding_seconds": seconds("seconds an epoch, en- and decoding", of_epoch("encode", "decode")),
}


def label(metric: str) -> str:
    """What the headline figure of a task is called."""
    return QUANTITIES[metric].label if metric in QUANTITIES else metric.replace("_", " ")


def quantity(name: str) -> Quantity:
    if name not in QUANTITIES:
        raise InputError(f"there is no quantity {name!r}; there are {', '.join(QUANTITIES)}")
    return QUANTITIES[name]
