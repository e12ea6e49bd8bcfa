"""A model layer by layer, full-rank and factorised, with the paper's counts beside ours. Only shapes are used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from pufferfish_bench.base import dense_layers
from pufferfish_bench.base.console import say
from pufferfish_bench.paper.numbers import paper_numbers, rounded
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import frozen, without_rows
from pufferfish_bench.report import tables


def show_run(directory: Path, console: Console) -> None:
    """Print how surgery changed the layers of a run, and when."""
    record, rows = reader.read(directory)
    with reader.asking(directory):
        show_record(record, console)
        if missing := reader.missing_epochs(record, rows):
            say(f"the record is {without_rows(missing)}", console)


def show_layers(title: str, figures: list[str], layers: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print a table with a row per layer."""
    shown = tables.table("layer", *figures, title=title)
    for name, layer in layers.items():
        values = (layer.get(figure) for figure in figures)
        shown.add_row(name, *("" if v is None else f"{v:.4g}" if isinstance(v, float) else f"{v:,}" for v in values))
    tables.show(shown, console)


def show_record(record: Mapping[str, Any], console: Console) -> None:
    say(record["settings"]["name"], console, style="bold")
    for operation in record["operations"]:
        layers = operation.get("layers", {})
        figures = list(dict.fromkeys(figure for layer in layers.values() for figure in layer))
        title = f"phase {operation['phase']}, from epoch {operation['epoch'] + 1}: {len(layers)} layer{'s' * (len(layers) != 1)}"
        if layers and "rank" in figures:
            title += f", the first is {next(iter(layers))}"  # the paper's K
        if layers:
            show_layers(title, figures, layers, console)
        else:  # an empty table would break the title after every word
            say(title, console)
        if "note" in operation:
            say(operation["note"], console)
        for sentence in dense_layers.sentences(operation.get("left", {})):
            say(sentence, console)
    if not record["operations"]:
        say("no layer was changed", console)
    if "summary" in record:
        summary = record["summary"]
        trained = f" ({frozen(summary)})" if frozen(summary) else ""
        say(f"parameters {summary['parameters']:,}{trained}, MACs {summary['macs']:,}", console)
    ratio = record["settings"]["method"].get("prune_ratio")
    paper = paper_numbers()["table7_eb_train"].get(f"eb_{round(100 * ratio)}") if ratio else None
    if paper and record["settings"]["name"].startswith("resnet50") and "penalty" in record["settings"]["method"]:
        say(
            f"the paper's ResNet-50 on ImageNet, pruned by {ratio:.0%}: parameters {paper['params']:,}, "
            f"MACs {rounded(paper['macs'])}, top-1 {paper['top1']} %. Where paths join, the paper keeps the larger of two "
            "channel counts; here a channel is kept if any path writes it.",
            console,
        )


def show(description: Mapping[str, Any], console: Console) -> None:
    """Print the description as two tables."""
    columns = ("layer", "shape", "rank", "parameters", "hybrid", "MACs", "hybrid")
    layers = tables.table(
        *columns, title=description["model"] + ": full rank, and hybrid where it differs" * ("hybrid" in description["totals"])
    )
    for row in description["layers"]:
        layers.add_row(
            row["layer"] or "the model itself",
            "x".join(map(str, row["shape"])),
            str(row["rank"] or ""),
            f"{row['parameters']:,}",
            f"{row['parameters_hybrid']:,}" if row["rank"] else "",
            f"{row['macs']:,}",
            f"{row['macs_hybrid']:,}" if row["rank"] else "",
        )
    modular = all(total["macs_as_in_paper"] is not None for total in description["totals"].values())
    columns = ("net", "parameters", "paper", "MACs", *("MACs, paper's way", "rounded", "paper") * modular)
    totals = tables.table(*columns, title="totals")
    for net, total in description["totals"].items():
        paper, theirs = total["paper"], total["macs_as_in_paper"]
        printed = rounded(paper["macs"]) if "macs" in paper else ""
        totals.add_row(
            net.replace("_", "-"),
            f"{total['parameters']:,}" + (f" ({frozen(total)})" if frozen(total) else ""),
            f"{paper['params']:,}" if "params" in paper else "",
            f"{total['macs']:,}",
            *((f"{theirs:,}", rounded(theirs), printed) if modular else ()),
        )
    tables.show(layers, console, dispensable=("shape",))
    for sentence in dense_layers.sentences(description["left"]):
        say(sentence, console)
    tables.show(totals, console, dispensable=("MACs, paper's way",))
    say(
        "MACs: multiply-accumulate operations of convolutions and matrix products for one sample (for text: one word)"
        + (f"; the paper's count adds {', '.join(description['also_counted'])}." if description["also_counted"] else "."),
        console,
    )
    if description["note"]:
        say(description["note"], console, lines=True)
    for net, total in description["totals"].items():
        late, early = total["macs_as_in_paper"], total["macs_as_in_paper_early_strides"]
        if modular and rounded(late) != rounded(early):
            say(
                f"{net.replace('_', '-')}: for a factorised 1x1 convolution with a stride, the paper's net has the stride on "
                f"the second factor and ours on the first: the same function with {late - early:,} fewer MACs, "
                f"{rounded(early)} instead of {rounded(late)}.",
                console,
            )
