"""Small records as runs leave them, for reports to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.report import reproduction

ABLATION = ("low_rank", "hybrid_without_warmup", "hybrid_with_warmup")


def write_record(
    folder: Path,
    *,
    metric: str = "test_accuracy",
    values: Sequence[float] = (50.0, 60.0),
    figures: Mapping[str, float] | None = None,
    seconds: float = 2.0,
    surgery: float | None = None,
    device: str = "a processor",
    workers: int = 1,
    hardware: Mapping[str, Any] | None = None,
    finished: str | None = "2026-01-02T03:04:05+00:00",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """The record of a run with an epoch for each value of the metric, every one as long."""
    folder.mkdir(parents=True)
    step = {"forward": seconds / 8, "backward": seconds / 8}
    rows = [
        {"phase": "train", "epoch": epoch, metric: value, "seconds": seconds, "steps": 4, "timed_steps": 4, "parameters": 1000}
        | {f"seconds_{section}": 4 * a_step for section, a_step in step.items()}
        for epoch, value in enumerate(values)
    ]
    summary = {"metric": metric, metric: values[-1], "parameters": 1000, "macs": 2000, "step": step}
    summary |= {"seconds": seconds * len(values), "seconds_per_epoch": seconds, **(figures or {})}
    operations = [] if surgery is None else [{"phase": "low_rank", "epoch": 1, "seconds": surgery, "layers": {}}]
    record: dict[str, Any] = {
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
    """Records of one cell (`cpu/table4/vgg19_vanilla_fp32`), the seeds from 1 on, that ended with these accuracies."""
    for seed, accuracy in enumerate(accuracies, start=1):
        write_record(results / "records" / place / f"seed{seed}", values=(accuracy / 2, accuracy), **further)


def write_counted(results: Path, place: str, **counted: float) -> None:
    """The record of a net that was counted and not trained."""
    folder = results / "records" / place / "seed1"
    folder.mkdir(parents=True)
    record = {
        "settings": {},
        "commit": "0123456789abcdef",
        "dirty": False,
        "counted": counted,
        "finished": "2026-01-01T00:00:00+00:00",
    }
    (folder / "run.json").write_text(json.dumps(record))


def ablation(results: Path, profile: str = "cpu") -> Path:
    """Table 8 with three seeds: the hybrid net is no better than the low-rank one, the warm-up helps."""
    for cell, accuracies in zip(ABLATION, ((70.1, 71.9, 70.7), (70.0, 72.0, 71.0), (80.0, 80.5, 81.0)), strict=True):
        write_cell(results, f"{profile}/table8/{cell}", accuracies, figures={"test_loss": 2.0 - accuracies[0] / 100})
    return results


def report(results: Path, *words: str) -> None:
    reproduction.main([*words, "--results", str(results)])
