"""Small records, as a run would write them, for reports to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.cli import report as command
from pufferfish_bench.records.files import read_json, write_json
from pufferfish_bench.records.reader import FORMAT

COMPUTING = {"data": 0.01, "forward": 0.2, "backward": 0.4, "step": 0.03, "method": 0.001, "other": 0.009}
ABLATION = {  # the cells of table 8 with the accuracies of three seeds
    "vanilla": (81.0, 81.5, 82.0),
    "low_rank": (70.1, 71.9, 70.7),
    "hybrid_without_warmup": (70.0, 72.0, 71.0),
    "hybrid_with_warmup": (80.0, 80.5, 81.0),
}


def write_record(
    folder: Path,
    *,
    metric: str = "test_accuracy",
    values: Sequence[float] = (50.0, 60.0),
    figures: Mapping[str, float] | None = None,
    seconds: float = 2.0,
    surgery: float | None = None,
    layers: Mapping[str, Mapping[str, float]] | None = None,  # that the surgery changed
    device: str = "a processor",
    workers: int = 1,
    hardware: Mapping[str, Any] | None = None,
    finished: str | None = "2026-01-02T03:04:05+00:00",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """The record of a run with one epoch for each value of the metric; all epochs take equally long."""
    folder.mkdir(parents=True)
    step = {"forward": seconds / 8, "backward": seconds / 8}
    rows = [
        {"phase": "train", "epoch": epoch, metric: value, "seconds": seconds, "steps": 4, "timed_steps": 4, "parameters": 1000}
        | {f"seconds_{section}": 4 * a_step for section, a_step in step.items()}
        for epoch, value in enumerate(values)
    ]
    summary = {"metric": metric, metric: values[-1], "parameters": 1000, "macs": 2000, "step": step}
    summary |= {"seconds": seconds * len(values), "seconds_per_epoch": seconds, **(figures or {})}
    operations = [] if surgery is None else [{"phase": "low_rank", "epoch": 1, "seconds": surgery, "layers": dict(layers or {})}]
    record: dict[str, Any] = {
        "format": FORMAT,
        "settings": dict(settings or {"name": folder.parent.name, "batch_size": 32}),
        "commit": "0123456789abcdef",
        "dirty": False,
        "hardware": {"device": device, "cores": 2, "threads": 2, **(hardware or {})},
        "world_size": workers,
        "operations": operations,
        "summary": summary,
    }
    if finished:
        record["finished"] = finished
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "epochs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_cell(results: Path, place: str, accuracies: Sequence[float], **further: Any) -> None:
    """Records of one cell (`cpu/table4/vgg19_vanilla_fp32`): one seed, from 1 on, for each final accuracy."""
    for seed, accuracy in enumerate(accuracies, start=1):
        write_record(results / "records" / place / f"seed{seed}", values=(accuracy / 2, accuracy), **further)


def write_counted(results: Path, place: str, **counted: float) -> None:
    """The record of a model whose parameters were counted; it was not trained."""
    write_untrained(results, place, counted=counted)


def write_untrained(results: Path, place: str, **entry: Mapping[str, Any]) -> None:
    """The record of something that was built and not trained."""
    folder = results / "records" / place / "seed1"
    folder.mkdir(parents=True)
    record = {
        "format": FORMAT,
        "settings": {},
        "commit": "0123456789abcdef",
        "dirty": False,
        **entry,
        "finished": "2026-01-01T00:00:00+00:00",
    }
    (folder / "run.json").write_text(json.dumps(record))


def ablation(
    results: Path,
    profile: str = "cpu",
    *,
    table: str = "table8",
    accuracies_of: Mapping[str, Sequence[float]] = ABLATION,
) -> Path:
    """An ablation whose gates hold; by default, the hybrid model is no better than the low-rank one, and the warm-up helps."""
    kept = {"layer4.1.conv2": {"rank": 4, "energy": 0.9, "random_energy": 0.4, "seconds": 0.1}}
    for cell, accuracies in accuracies_of.items():
        figures = {"test_loss": 2.0 - accuracies[0] / 100, "train_accuracy": 99.0}
        figures["parameters"] = 3350 if cell == "vanilla" else 1000
        surgery = {"surgery": 0.1, "layers": kept} if cell == "hybrid_with_warmup" else {}
        write_cell(results, f"{profile}/{table}/{cell}", accuracies, figures=figures, **surgery)
    return results


def report(results: Path, *words: str) -> None:
    """Write the report on a results folder."""
    command.main([*words, "--results", str(results)])


def write_run(
    directory: Path,
    *,
    name: str = "resnet18-cifar10-vanilla-cpu-seed1",
    sections: Mapping[str, float] = COMPUTING,
    messages: Sequence[tuple[str, int]] | None = (("allreduce", 44_695_336),),
    workers: int = 2,
    cap: float | None = 1e8,
    latency: float = 1e-3,
    efficiency: float = 1.0,
    steps: int = 10,
    untimed: int = 2,
    batch_size: int = 32,
    earlier: Sequence[dict[str, Any]] = (),
    network: bool = True,
) -> Path:
    """The record of one epoch in which each timed step took `sections`, after the rows of earlier phases."""
    directory.mkdir(parents=True)
    timed = steps - untimed
    row = {"phase": "train", "epoch": len(earlier), "steps": steps, "timed_steps": timed, "seconds_first_steps": 3.0 * untimed}
    row |= {f"seconds_{section}": seconds * timed for section, seconds in sections.items()}
    row |= {f"slowest_{section}": seconds * timed * 1.1 for section, seconds in sections.items()}
    row |= {f"fastest_{section}": seconds * timed * 0.9 for section, seconds in sections.items()}
    row["seconds"] = sum(value for key, value in row.items() if key.startswith("seconds_"))
    row["bytes_sent"] = steps * sum(size for _, size in messages or ())
    if messages is not None:
        row["messages"] = messages
    record: dict[str, Any] = {
        "format": 2,
        "settings": {"name": name, "batch_size": batch_size, "workers": workers},
        "world_size": workers,
        "hardware": {"device": "a processor", "cores": 2, "threads": 1},
        "commit": "0123456789abcdef",
    }
    if network:
        fitted = {"latency": latency, "bandwidth": (cap or 1e12) / 8 * efficiency, "points": []}
        record["network"] = {"hosts": workers, "cap_bits_per_second": cap, "ranks": workers}
        record["network"] |= {"allreduce": fitted, "allgather": fitted}
    (directory / "run.json").write_text(json.dumps(record))
    (directory / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (*earlier, row)))
    return directory


def write_lab_run(
    directory: Path, *, cap: float, computation: float, communication: float, workers: int = 2, **further: Any
) -> Path:
    """The finished record of a run in the lab: each of five timed steps computes and communicates for so many seconds."""
    sections = {"forward": computation, "communicate": communication}
    write_run(directory, sections=sections, workers=workers, cap=cap, steps=6, untimed=1, **further)
    run, row = json.loads((directory / "run.json").read_text()), json.loads((directory / "epochs.jsonl").read_text())
    summary = {"metric": "test_accuracy", "test_accuracy": 10.0, "parameters": 1000, "macs": 2000, "step": sections}
    summary |= {"seconds": 6 * sum(sections.values()), "seconds_per_epoch": 6 * sum(sections.values())}
    run |= {"dirty": False, "operations": [], "summary": summary, "finished": "2026-01-02T03:04:05+00:00"}
    (directory / "run.json").write_text(json.dumps(run))
    (directory / "epochs.jsonl").write_text(json.dumps(row | {"test_accuracy": 10.0}) + "\n")
    return directory


def plant_company(run: Path, cores: float) -> None:
    """A second sitting during which other processes used some cores."""
    alone = {"load_before": 0.1, "load_after": 1.0, "other_busy_cores": 0.01}
    write_json(run / "run.json", read_json(run / "run.json") | {"machine_load": [alone, alone | {"other_busy_cores": cores}]})
