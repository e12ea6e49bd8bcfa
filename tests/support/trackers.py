"""What the trackers of a run have, by the readers of their own packages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pufferfish_bench.trackers.mlflow import TAG

Curves = dict[str, dict[int, list[float]]]  # name -> step -> values: more than one if a step was logged more than once


def tensorboard(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def tensorboard_curves(run: Path) -> Curves:
    events = tensorboard(run)
    return {tag: by_step((one.step, one.value) for one in events.Scalars(tag)) for tag in events.Tags()["scalars"]}


def mlflow_run(run: Path, uri: str) -> tuple[MlflowClient, Run]:
    """The only run that MLflow has of a directory."""
    client = MlflowClient(tracking_uri=uri)
    name = (run / "tracker_id").read_text().strip()
    everywhere = [one.experiment_id for one in client.search_experiments()]
    (found,) = client.search_runs(everywhere, filter_string=f"tags.`{TAG}` = '{name}'")
    return client, found


def mlflow_curves(run: Path, uri: str) -> Curves:
    client, found = mlflow_run(run, uri)
    return {
        key: by_step((one.step, one.value) for one in client.get_metric_history(found.info.run_id, key))
        for key in found.data.metrics
    }


def wandb_files(run: Path) -> list[Path]:
    return sorted((run / "wandb").glob("offline-run-*/*.wandb"))


def wandb_records(run: Path) -> list[dict[str, Any]]:
    """The records of all offline files of a run, in order, printed by `wandb leet inspect`."""
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json"]
    return [
        json.loads(line)
        for file in wandb_files(run)
        for line in subprocess.run([*inspect, str(file)], capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def by_step(points: Any) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for step, value in points:
        found.setdefault(step, []).append(value)
    return found
