"""Reads run.json and epochs.jsonl, which may be damaged or written by somebody else: every problem becomes an InputError.

`read_run` and `read_rows` check the type of every value that is there. The caller decides which keys must be there: inside
`asking(directory)`, a missing key becomes an InputError too. Needs no torch.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.records.files import EPOCHS, RUN, Row

FORMAT = 2  # of run.json and of checkpoints; format 1, of version 0.1, has no number
DEEPEST = 50  # levels of nesting; real records have fewer than ten
LARGEST, MOST_EPOCHS = 2**63, 10**6
Check = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def is_epoch(value: Any) -> bool:
    return is_count(value) and value < MOST_EPOCHS


def is_number(value: Any) -> bool:
    """Infinity is allowed, as some metrics are infinite; NaN is not."""
    return -LARGEST < value < LARGEST if type(value) is int else type(value) is float and not math.isnan(value)


def is_amount(value: Any) -> bool:
    """A number that can be added up."""
    return is_number(value) and -LARGEST < value < LARGEST


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def each(check: Check) -> Check:
    """A list or an object whose values all pass the check."""
    return lambda value: isinstance(value, list | dict) and all(map(check, value.values() if is_object(value) else value))


def fields(**checks: Check) -> Check:
    """An object in which these keys, if present, pass their checks."""
    return lambda value: is_object(value) and all(check(value[key]) for key, check in checks.items() if key in value)


def is_message(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and is_text(value[0]) and is_count(value[1])


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_figure(value: Any) -> bool:
    return is_number(value) or is_flag(value)


LINK = fields(latency=is_amount, bandwidth=is_amount)
CONDITIONS: dict[str, Check] = {  # of a run, or of a part of it after a resume
    "commit": or_none(is_text),
    "dirty": or_none(is_flag),
    "versions": is_object,
    "hardware": fields(device=is_text, kind=is_text, cores=is_count, threads=is_count, workers=is_count),
    "data": is_object,
    "world_size": is_count,
    "network": or_none(fields(hosts=is_count, cap_bits_per_second=is_amount, allreduce=LINK, allgather=LINK)),
}
KINDS: dict[str, Check] = {
    **CONDITIONS,
    "settings": fields(
        name=is_text, epochs=is_epoch, batch_size=is_count, seed=is_count,
        model=is_object, dataset=is_object, method=is_object, reducer=is_object,
    ),
    "plan": each(fields(phase=is_text, epochs=each(is_epoch))),
    "task": fields(metric=is_text, higher_is_better=is_flag),
    "started": is_text,
    "finished": is_text,
    "resumed": lambda value: isinstance(value, list) and each(fields(**CONDITIONS))(value),
    "machine_load": lambda value: isinstance(value, list)
    and each(fields(load_before=is_amount, load_after=is_amount, other_busy_cores=is_amount))(value),
    "incomplete": lambda value: isinstance(value, list) and each(is_epoch)(value),
    "operations": lambda value: isinstance(value, list)
    and each(
        fields(
            phase=is_text, epoch=is_epoch, seconds=is_amount, note=is_text, nonzero_parameters=is_count,
            left=lambda left: is_object(left) and each(is_text)(left),
            layers=lambda layers: is_object(layers) and each(lambda layer: is_object(layer) and each(is_figure)(layer))(layers),
        )
    )(value),
    "summary": fields(
        metric=is_text, higher_is_better=is_flag,
        best_epoch=is_epoch, loss=is_number, parameters=is_count, trainable_parameters=is_count,
        nonzero_parameters=is_count, macs=is_count, epochs=is_epoch, seconds=is_amount, seconds_per_epoch=is_amount,
        bytes_per_step=is_amount, step=lambda step: is_object(step) and each(is_amount)(step),
    ),
    "counted": lambda value: is_object(value) and each(or_none(is_number))(value),
}  # fmt: skip
ROW: dict[str, Check] = {
    "phase": is_text, "epoch": is_epoch, "loss": is_number, "learning_rate": is_number, "bytes_sent": is_count,
    "messages": lambda value: isinstance(value, list) and each(is_message)(value), "steps": is_count, "timed_steps": is_count,
    "overlaps": is_flag,
    "seconds": is_amount, "parameters": is_count, "trainable_parameters": is_count, "nonzero_parameters": is_count,
    "macs": is_count, "level": is_count, "stable_rank": is_number, "stable_rank_change": is_number, "mask_distance": is_number,
}  # fmt: skip
MEASURED = ("test_", "val_", "train_", "best_")
TIMED = ("seconds_", "slowest_", "fastest_")


def read_run(directory: Path, needs: Sequence[str] = ("settings",)) -> dict[str, Any]:
    """The content of run.json in a directory; `needs` lists required keys (`summary.metric` is a nested one)."""
    path = directory / RUN
    if not path.is_file():
        raise InputError(f"there is no run in {directory}")
    record = parsed(path.read_bytes(), str(path))
    if "settings" in record:
        check_format(record, str(path))
    check_kinds(record, KINDS, str(path))
    check_kinds(record.get("summary", {}), named(record.get("summary", {})), f"{path}: summary")
    require(record, needs, str(path))
    return record


class OtherFormat(InputError):
    """A record or a checkpoint was written by another version of this package."""


def check_format(found: Mapping[str, Any], where: str) -> None:
    """Refuse a record or a checkpoint in another format."""
    if "format" not in found:
        raise OtherFormat(
            f"{where} was written by pufferfish-bench 0.1, which used another format: "
            "delete the directory and run again, or use version 0.1"
        )
    if found["format"] != FORMAT:
        raise OtherFormat(
            f"{where} has format {printable(json.dumps(found['format']))[:20]}, but this version reads format {FORMAT}: "
            "use the version that wrote it, or delete the directory and run again"
        )


def read_rows(directory: Path, needs: Sequence[str] = ("epoch", "phase")) -> list[Row]:
    """The rows of epochs.jsonl in a directory, one per epoch, in order, each with these keys.

    A last line that was truncated by a kill is left out.
    """
    path = directory / EPOCHS
    if not path.is_file():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        row = parsed(line, where)
        require(row, needs, where)
        check_kinds(row, ROW | named(row), where)
        if rows and row["epoch"] <= rows[-1]["epoch"]:
            raise InputError(f"{where} has epoch {row['epoch']} after epoch {rows[-1]['epoch']}: epochs must increase")
        rows.append(row)
    return rows


def require(found: Mapping[str, Any], needs: Sequence[str], where: str) -> None:
    for need in needs:
        inside: Any = found
        for key in need.split("."):
            if not isinstance(inside, dict) or key not in inside:
                raise InputError(f"{where} is not the record of a run: it has no {need}")
            inside = inside[key]


def read(directory: Path) -> tuple[dict[str, Any], list[Row]]:
    """Both files of a record."""
    return read_run(directory), read_rows(directory)


def is_finished(record: Mapping[str, Any]) -> bool:
    """Whether a run has been trained to its end."""
    return "finished" in record


def missing_epochs(record: Mapping[str, Any], rows: list[Row]) -> list[int]:
    """The epochs whose rows are missing: those that the record lists as missing, and any trained epoch without a row."""
    there = {row["epoch"] for row in rows}
    trained = range(record["summary"].get("epochs", len(rows)) if "summary" in record else max(there, default=-1) + 1)
    return sorted(({*record.get("incomplete", ())} | {*trained}) - there)


@contextlib.contextmanager
def asking(directory: Path | str) -> Iterator[None]:
    """Errors while evaluating a record, such as a missing key or an impossible value, become an InputError."""
    try:
        yield
    except InputError:
        raise
    except KeyError as error:
        missing = printable(str(error.args[0]))
        raise InputError(f"the record in {directory} is not the record of a training run: it has no {missing}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"the record in {directory} cannot be used: {printable(str(error))}") from error


def parsed(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `content`."""
    try:
        found = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise InputError(f"{where} cannot be read: it is nested too deeply") from None
    except ValueError as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{where} cannot be read: {printable(reason)}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where} is not a JSON object")
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        inside = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in inside if isinstance(value, dict | list)]
        if not level:
            return found
    raise InputError(f"{where} cannot be read: it is nested more than {DEEPEST} levels deep")


def named(figures: Mapping[str, Any]) -> dict[str, Check]:
    """The checks of figures whose type follows from their name."""
    measured = {name: is_number for name in figures if name.startswith(MEASURED) and name != "best_epoch"}
    return measured | {name: is_amount for name in figures if name.startswith(TIMED)}


def check_kinds(found: Mapping[str, Any], kinds: Mapping[str, Check], where: str) -> None:
    for key, check in kinds.items():
        if key in found and not check(found[key]):
            shown = printable(json.dumps(found[key]))
            raise InputError(
                f"{where}: {printable(key)} has a value of the wrong type or range: {shown[:60]}{' ...' * (len(shown) > 60)}"
            )
