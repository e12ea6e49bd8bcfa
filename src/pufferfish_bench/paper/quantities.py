"""The quantities that a record holds: label, whether higher is better, and how to read and print them. Compares nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper.numbers import as_printed, rounded
from pufferfish_bench.records.measured import PARTS
from pufferfish_bench.records.record import COUNTED, Record, higher_is_better

Reader = Callable[[Record], float | None]


@dataclass(frozen=True)
class Quantity:
    """A number of a finished run. Counts are equal if they print the same; times are comparable on the same machine only."""

    label: str
    higher_is_better: bool
    read: Reader
    show: Callable[[float], str]
    is_time: bool = False
    as_printed: Callable[[float], float] = float  # the value of the digits that the paper would print


def of_summary(name: str) -> Reader:
    return lambda record: record.summary.get(name)


def counted(figure: str) -> Reader:
    """From the record of a count, or from the final model of a run."""

    def read(record: Record) -> float | None:
        return record.run[COUNTED].get(figure) if COUNTED in record.run else record.summary.get(figure)

    return read


def of_epoch(*sections: str) -> Reader:
    return lambda record: record.epoch_seconds(*sections)


def at_best_epoch(name: str) -> Reader:
    """The value in the epoch of the last phase with the best metric (which is on validation data, if there are any)."""

    def read(record: Record) -> float | None:
        best = record.summary.get("best_epoch")
        return next((row.get(name) for row in record.rows if row["epoch"] == best), None)

    return read


def svd_share(record: Record) -> float | None:
    """The time of the factorisation as a percentage of an epoch of the phase before it; None without such a phase."""
    surgery, epoch = record.surgery_seconds, record.epoch_seconds_before_surgery
    return None if surgery is None or not epoch else 100 * surgery / epoch


def communication_ratio(record: Record) -> float | None:
    """Seconds of communication for each second of computation, in the last phase; None if no step was timed."""
    computation = record.epoch_seconds(*PARTS["computation"])
    return record.epoch_seconds(*PARTS["communication"]) / computation if computation else None


def decimals(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def percent(label: str, name: str) -> Quantity:
    return Quantity(label, higher_is_better(name), of_summary(name), decimals(2))


def perplexity(part: str) -> Quantity:
    name = f"{part}_ppl"
    return Quantity(f"{part} perplexity", higher_is_better(name), of_summary(name), decimals(2))


def seconds(label: str, read: Reader, *, digits: int = 3) -> Quantity:
    return Quantity(label, False, read, decimals(digits), is_time=True)


QUANTITIES = {
    "test_accuracy": percent("test accuracy, %", "test_accuracy"),
    "test_top5": percent("top-5 test accuracy, %", "test_top5"),
    "test_loss": Quantity("test loss", higher_is_better("test_loss"), of_summary("test_loss"), decimals(3)),
    "train_ppl": perplexity("train"),
    "val_ppl": perplexity("val"),
    "test_ppl": perplexity("test"),
    "best_val_ppl": Quantity("val perplexity of the best epoch", False, at_best_epoch("val_ppl"), decimals(2)),
    "best_test_ppl": Quantity("test perplexity of the best epoch", False, at_best_epoch("test_ppl"), decimals(2)),
    "val_bleu": percent("val BLEU", "val_bleu"),
    "test_bleu": percent("test BLEU", "test_bleu"),
    "best_val_bleu": percent("val BLEU of the best epoch", "best_val_bleu"),
    "best_test_bleu": percent("test BLEU of the best epoch", "best_test_bleu"),
    "parameters": Quantity("parameters", False, counted("parameters"), decimals(0)),
    "parameters_and_buffers": Quantity("parameters and buffers", False, counted("parameters_and_buffers"), decimals(0)),
    "nonzero_parameters": Quantity("parameters left", False, counted("nonzero_parameters"), decimals(0)),
    "layer_macs": Quantity("MACs", False, counted("macs"), decimals(0)),
    "macs": Quantity("MACs, paper's way", False, counted("macs_as_in_paper"), rounded, as_printed=as_printed),
    "seconds_per_epoch": seconds("seconds per epoch", of_summary("seconds_per_epoch")),
    "seconds": seconds("total seconds", lambda record: record.total_seconds, digits=1),
    "svd_seconds": seconds("seconds of the factorisation", lambda record: record.surgery_seconds),
    "encode_seconds": seconds("seconds per epoch, encoding", of_epoch("encode")),
    "decode_seconds": seconds("seconds per epoch, decoding", of_epoch("decode")),
    "coding_seconds": seconds("seconds per epoch, encoding and decoding", of_epoch("encode", "decode")),
    "communication_seconds": seconds("seconds per epoch, communication", of_epoch("communicate")),
    "gradient_seconds": seconds("seconds per epoch, forward and backward", of_epoch("forward", "backward")),
    "bytes_per_step": Quantity("bytes sent per step and worker", False, of_summary("bytes_per_step"), decimals(0)),
    "svd_share": seconds("factorisation, % of a full-rank epoch", svd_share, digits=2),
    "communication_ratio": seconds("communication / computation", communication_ratio, digits=2),
}


def label(metric: str) -> str:
    """The label of a task's main metric."""
    return QUANTITIES[metric].label if metric in QUANTITIES else metric.replace("_", " ")


def quantity(name: str) -> Quantity:
    if name not in QUANTITIES:
        raise InputError(f"{name!r} is not a quantity; there are {', '.join(QUANTITIES)}")
    return QUANTITIES[name]
