"""The last words of a finished run: its results, and where the time of a step went."""

from collections.abc import Mapping
from typing import Any

from pufferfish_bench.base.printable import printable
from pufferfish_bench.records.files import frozen, with_other_weights, without_rows
from pufferfish_bench.records.record import Record, other_figures

BAR = 40  # characters of the longest bar


def closing(record: Record) -> str:
    """The results of a finished run, for a person."""
    summary, metric = record.summary, record.metric
    nonzero = f"{summary['nonzero_parameters']:,} not zero" if "nonzero_parameters" in summary else ""
    remarks = ", ".join(filter(None, (nonzero, frozen(summary))))
    left = f" ({remarks})" if remarks else ""
    further = "".join(f"{printable(name)} {value:.2f}, " for name, value in other_figures(summary, metric).items())
    missing = record.missing_epochs
    unequal = with_other_weights(record.unequal_ranks) + "\n" if record.unequal_ranks else ""
    return (
        f"finished: {printable(metric)} {summary[metric]:.2f} (best {summary[f'best_{metric}']:.2f} in epoch "
        f"{summary['best_epoch'] + 1}), {further}{summary['parameters']:,} parameters{left}, {summary['macs']:,} MACs, "
        f"{summary['seconds_per_epoch']:.1f} s per epoch, {summary['seconds']:.0f} s of training\n"
        f"{bars(summary)}{without_rows(missing) + chr(10) if missing else ''}{unequal}files:    {printable(str(record.folder))}"
    )


def bars(summary: Mapping[str, Any]) -> str:
    """A step of the last phase, one line and bar for each section."""
    step = summary["step"]
    whole = sum(step.values())
    if not whole:
        return ""
    longest = max(step.values())
    sent = f", {summary['bytes_per_step']:,} bytes sent" if summary["bytes_per_step"] else ""
    lines = [f"a step:   {1000 * whole:.1f} ms{sent}\n"]
    for section, seconds in step.items():
        bar = "\N{FULL BLOCK}" * round(BAR * seconds / longest)
        line = f"  {printable(section):<12}{1000 * seconds:>9.1f} ms {100 * seconds / whole:>5.1f} %  {bar}"
        lines.append(line.rstrip() + "\n")
    return "".join(lines)
