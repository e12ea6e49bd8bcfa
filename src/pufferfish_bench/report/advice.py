"""The advice of pufferfish-advise: tables for the terminal and a chart of the speed-up over bandwidth."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.console import Console

from pufferfish_bench.base import dense_layers
from pufferfish_bench.base.console import say
from pufferfish_bench.distributed import forecast, units
from pufferfish_bench.distributed.forecast import Method, Training
from pufferfish_bench.records import provenance
from pufferfish_bench.records.measured import Link
from pufferfish_bench.report import charts
from pufferfish_bench.report.output import Cell, Sheet, number

SPAN = (1e7, 1e12)  # bits per second on the bandwidth axis
FACTORISED = "Pufferfish"
MOST_NOISE = 0.1  # of a whole step: above, a warning
MOST_TABLES = 2  # with more numbers of workers, one table of speed-ups replaces the others

Advice = Mapping[str, Any]


def show(advice: Advice, console: Console) -> None:
    """Print the layers, the methods for each number of workers, and the recommendation."""
    if advice["layers"]:
        layers(advice).show(console)
    for sentence in dense_layers.sentences(advice["left"]):
        say(sentence, console)
    say(step_sentence(advice), console)
    counts = advice["workers"]
    for workers in counts if len(counts) <= MOST_TABLES else counts[:1]:
        methods(advice, workers).show(console)
    if len(counts) > MOST_TABLES:
        speedups(advice).show(console)
    for warning in [*noise_warnings(advice), *stable_rank_warnings(advice)]:
        say(f"warning: {warning}", console)
    for found in advice["recommendations"]:
        say(found["sentence"], console, style="bold")
    say(batch_sentence(advice), console)
    commands = {tuple(found["overrides"]): found["command"] for found in reversed(advice["recommendations"])}
    for command in reversed(commands.values()):
        say(f"  {command}", console)
    say(machines_sentence(advice), console)
    say(f"Not known here: {'; '.join(advice['unknown'])}.", console)


def batch_sentence(advice: Advice) -> str:
    """The batch that was measured, and whether it makes another global batch than that of the recipe."""
    size, chosen_for = advice["batch_size"], advice.get("recipe_batch")
    found = {each["workers"]: each["global_batch"] for each in advice["recommendations"]}
    other = [f"{batch:,} with {workers:,} workers" for workers, batch in found.items() if batch != chosen_for]
    words = f"measured with a batch of {size:,} on each worker, with which the command below trains"
    if chosen_for is None or not other:
        return f"{words}."
    return (
        f"{words}. The global batch is then {size:,} x workers ({', '.join(dict.fromkeys([other[0], other[-1]]))}), but the "
        f"learning rate of this recipe was chosen for {chosen_for:,}: see schedule.scale in docs/many-workers.md."
    )


def machines_sentence(advice: Advice) -> str:
    """Where to start the printed commands."""
    if any(each["machines"] > 1 for each in advice["recommendations"]):
        return "on all machines at the same time; MASTER is the address of one of them: see docs/many-workers.md."
    return "on one machine; for several see docs/many-workers.md."


def layers(advice: Advice) -> Sheet:
    """A row for each layer: its time dense and at each rank."""
    ratios = advice["ratios"]
    with_stable = any("stable_rank" in row for row in advice["layers"])
    columns = ["layer", "matrix", "weights", "full rank", *(fraction(ratio) for ratio in ratios), "rank", "weights at rank"]
    columns += [*(["stable rank"] if with_stable else []), "advice"]
    rows = []
    for row in advice["layers"]:
        smaller = min(row["shape"])
        times = (row["ranks"].get(str(max(1, int(ratio * smaller)))) for ratio in ratios)
        rows.append([
            row["layer"], f"{row['shape'][0]} x {row['shape'][1]}", number(row["weights"], "{:,}".format),
            number(row["seconds"], units.show_seconds),
            *(number(time and time["seconds"], units.show_seconds) for time in times),
            number(row["rank"], str), number(row["weights_at_rank"], "{:,}".format),
            *([stable_rank(row)] if with_stable else []),
            row["advice"] + compared(row),
        ])  # fmt: skip
    title = f"{advice['model']}: forward and backward of each layer, batch {advice['batch_size']}"
    shown = [fraction(ratio) for ratio in ratios]
    note = "Medians, dense and factorised in turns."
    if shown:
        note = f"Column{'s' * (len(shown) > 1)} {', '.join(shown)}: at this fraction of the smaller side of the matrix. {note}"
    return Sheet(title, columns, rows, note, dispensable=(*shown, "weights at rank", "matrix", "full rank", "stable rank"))


def stable_rank(row: Mapping[str, Any]) -> Cell:
    """The stable rank of a trained layer; of one that was truncated, the rank to which it was."""
    if "truncated_to" in row:
        return Cell(f"cut to {row['truncated_to']}", row["truncated_to"])
    return number(row.get("stable_rank"), "{:.1f}".format)


def compared(row: Mapping[str, Any]) -> str:
    """How the time at the rank of the settings compares with the dense layer, in parentheses."""
    timing = row["ranks"].get(str(row["rank"]))
    return f" ({timing['ratio']:.2f} of the time)" if timing else ""


def fraction(ratio: float) -> str:
    """1/4 for 0.25; a ratio that is not of this form is printed as a number."""
    parts = round(1 / ratio)
    return f"1/{parts}" if abs(1 / ratio - parts) < 1e-9 else f"{ratio:g}"


def step_sentence(advice: Advice) -> str:
    steps = {name: sum(sections.values()) - sections.get("wait", 0.0) for name, sections in advice["steps"].items()}
    noise = advice["noise"]
    shown = ", ".join(f"{name} {units.show_seconds(seconds)} (noise {noise[name]:.0%})" for name, seconds in steps.items())
    words = f"a whole step without communication: {shown}; outside the layers above: "
    words += units.show_seconds(max(0.0, advice["rest_of_the_step"]))
    if (whole := advice["step_ratio"]) and not whole["faster"] and not advice["includes_slower_layers"]:
        words += f". The layers measured faster, but the whole step did not: {whole['ratio']:.2f} of the time"
        words += f", noise {whole['noise']:.0%}"
    if advice["includes_slower_layers"]:
        words += ". layers=all: Pufferfish includes layers that are no faster at their rank, and is not recommended"
    if FACTORISED not in steps:
        words += ". No layer that model.low_rank factorises is faster at its rank: Pufferfish is not considered"
    return f"{words}."


def noise_warnings(advice: Advice) -> list[str]:
    """Whether the measured step varied too much for a decision."""
    largest = max(advice["noise"].values())
    if largest <= MOST_NOISE:
        return []
    return [
        f"the noise of the whole step is {largest:.0%}, above {MOST_NOISE:.0%}: the predictions are as uncertain. Use a machine "
        f"on which nothing else runs, or more rounds (rounds={2 * advice['rounds']})"
    ]


def methods(advice: Advice, workers: int) -> Sheet:
    """A row for each method."""
    rows = []
    for row in advice["forecasts"]:
        if row["workers"] == workers:
            rows.append([
                row["method"] + (" (estimate)" if row["estimate"] else ""), number(row["seconds"], units.show_seconds),
                number(row["speedup"], "{:.2f}x".format), number(row["whole_run"], "{:.2f}x".format),
                number(row["bytes"] / 1e6, "{:,.2f} MB".format),
                number(row["memory"] / 1e6, "{:,.1f} MB".format), where_it_pays(row) if rows else "",
            ])  # fmt: skip
    columns = ["method", "step", "speed-up", "whole run", "sent", "memory", "pays"]
    title = f"{workers:,} workers, {advice['network']['name']}"
    note = (
        f"Network: {advice['network']['source']}. Memory: parameters, gradients, optimizer state, buffers of the reducer, in the "
        "larger phase of a run. "
        f"Whole run: the speed-up of {advice['epochs']} epochs, {advice['warmup_epochs']} of them at full rank with Pufferfish. "
        f"A method pays where its whole run is more than {advice['margin']:.0%}, and its noise, faster than the first one's."
    )
    return Sheet(title, columns, rows, note, dispensable=("memory",))


def speedups(advice: Advice) -> Sheet:
    """The speed-up of each method for all numbers of workers."""
    found = {(row["method"], row["workers"]): row["whole_run"] for row in advice["forecasts"]}
    names = dict.fromkeys(name for name, _ in found)
    rows = [[name, *(number(found[name, workers], "{:.2f}x".format) for workers in advice["workers"])] for name in names]
    return Sheet(
        f"speed-up of {whole_run(advice)} over {next(iter(names))} by number of workers, {advice['network']['name']}",
        ["method", *(f"{workers:,}" for workers in advice["workers"])], rows,
    )  # fmt: skip


def whole_run(advice: Advice) -> str:
    """What a speed-up is of: without a warm-up, that of a step is that of a whole run."""
    return "a whole run" if advice["warmup_epochs"] else "a step"


def where_it_pays(row: Mapping[str, Any]) -> str:
    if not row["pays"]:
        return "nowhere"
    limits = [f"above {units.show_bits(row['pays_above'])}"] if row["pays_above"] else []
    limits += [f"below {units.show_bits(row['pays_below'])}"] if row["pays_below"] else []
    return " and ".join(limits) or "at every bandwidth"


def stable_rank_warnings(advice: Advice) -> list[str]:
    """Layers whose trained weights need more than their rank; and where a run cannot tell."""
    truncated = [row["layer"] for row in advice["layers"] if "truncated_to" in row]
    unknown = (
        f"the run has truncated the weights of {len(truncated)} layers to their rank, so that their stable rank says nothing: "
        "name a full-rank run (method=vanilla) instead"
    )
    return ([unknown] if truncated else []) + [
        f"the stable rank of {row['layer']} in the trained run is {row['stable_rank']:.1f}, above its rank {row['rank']}: "
        "factorising it may cost accuracy"
        for row in advice["layers"]
        if row["factor"] and "truncated_to" not in row and row.get("stable_rank", 0) > row["rank"]
    ]


def draw(advice: Advice, out: Path, console: Console) -> None:
    """The speed-up of a whole run with each method over bandwidth, a panel for each number of workers (at most four)."""
    methods = [Method.from_data(data) for data in advice["methods"]]
    found = forecast.trainings(methods, advice["warmup_epochs"] / advice["epochs"])
    counts = some(advice["workers"], 4)
    links = {
        kind: Link(figures["latency"], inf if figures["bandwidth"] is None else figures["bandwidth"])
        for kind, figures in advice["network"]["links"].items()
    }
    with charts.style():
        figure = Figure(figsize=(4 + 4.5 * len(counts), 6.5), layout="constrained")
        panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
        for axes, workers in zip(panels, counts, strict=True):
            panel(axes, found, workers, links)
        panels[0].set_ylabel(f"speed-up of {whole_run(advice)} over vanilla training, predicted")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=charts.SMALL + 2)
        latency = units.show_seconds(links["allreduce"].latency)
        words = f"{advice['model']}, batch {advice['batch_size']} per worker, latency {latency}"
        figure.suptitle(charts.title(words), x=0.02, horizontalalignment="left")
        charts.write_at_foot(figure, provenance.sentence(provenance.of([advice])))
        charts.save(figure, out, console)


def panel(axes: Any, found: Sequence[Training], workers: int, links: Mapping[str, Link]) -> None:
    span = np.geomspace(*SPAN, 121)
    scaled = [forecast.scaled(links, bits / 8) for bits in span]
    baseline = found[0].method
    colours = {reducer: place for place, reducer in enumerate(dict.fromkeys(run.method.reducer for run in found))}
    for run in found[1:]:
        speedup, method = [forecast.speedup(run, baseline, workers, here) for here in scaled], run.method
        low_rank = method.model == FACTORISED
        axes.plot(
            span, speedup, label=method.label, color=charts.LINES[colours[method.reducer] % len(charts.LINES)],
            linestyle="-" if low_rank else "--", linewidth=2 if low_rank else 1.2,
        )  # fmt: skip
    axes.axhline(1.0, color=charts.GREY, linewidth=1)
    if SPAN[0] <= 8 * links["allreduce"].bandwidth <= SPAN[1]:
        axes.axvline(8 * links["allreduce"].bandwidth, color=charts.GREY, linewidth=1, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="bandwidth of a worker's link", title=f"{workers:,} workers")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.show_bits(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", rotation=30)


def some(counts: Sequence[int], most: int) -> list[int]:
    """At most this many of the numbers of workers, evenly spread, the first and the last among them."""
    if len(counts) <= most:
        return list(counts)
    return [counts[round(place * (len(counts) - 1) / (most - 1))] for place in range(most)]
