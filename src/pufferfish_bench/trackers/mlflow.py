"""MLflow: a run in a tracking store, which is a database, a server or a folder."""

import json
import logging
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pufferfish_bench.base.flat import flat
from pufferfish_bench.trackers.tracker import Progress, Tracker, figures

TAG = "pufferfish_bench.id"  # the tag by which a run is found again
PARAMS, METRICS, LENGTH, KEY = 100, 1000, 6000, 250  # most entries of one request, and longest value and name of a parameter


class MLflow(Tracker):
    """Settings are parameters, columns of a row are metrics with the epoch as step, phases and conditions are tags."""

    package = "mlflow"

    def __init__(self, *, uri: str, experiment: str, directory: Path, manifest: Mapping[str, Any]):
        super().__init__(directory=directory, manifest=manifest)
        self.uri = uri
        self.experiment = experiment
        self.sent: set[tuple[str, int]] = set()  # metric and step

    def connect(self, progress: Progress) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it creates
        self.client = MlflowClient(tracking_uri=self.uri)
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
        earlier = self.client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{self.run_id()}'", max_results=1)
        run = earlier[0] if earlier else self.client.create_run(experiment, tags={TAG: self.run_id()}, run_name=self.name)
        self.run = run.info.run_id
        # a kill may have come in the middle of a row, and the same metric of the same step sent again would be there twice
        self.sent = {(key, one.step) for key in run.data.metrics for one in self.client.get_metric_history(self.run, key)}
        params = [Param(key[:KEY], text(value)) for key, value in flat(self.manifest.get("settings", {})).items()]
        for start in range(0, len(params), PARAMS):
            self.client.log_batch(self.run, params=params[start : start + PARAMS])
        conditions = {key: value for key, value in self.manifest.items() if key not in ("settings", "format")}
        tags = [RunTag(key[:KEY], text(value)) for key, value in {**flat(conditions), "directory": str(self.directory)}.items()]
        for start in range(0, len(tags), PARAMS):
            self.client.log_batch(self.run, tags=tags[start : start + PARAMS])
        self.client.update_run(self.run, status="RUNNING")

    def send(self, progress: Progress) -> None:
        for name, epoch in progress.phases.items():
            self.client.set_tag(self.run, f"phase.{name}", f"from epoch {epoch + 1}")
        if progress.phases:
            self.client.set_tag(self.run, "phase", list(progress.phases)[-1])
        for row in progress.rows:
            self.send_metrics(figures(row), row["epoch"])
        if progress.finished:
            self.send_metrics(progress.results, len(progress.rows))
            for name, content in progress.files.items():
                self.client.log_text(self.run, content, name)

    def send_metrics(self, found: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        missing = (Metric(key, value, now, step) for key, value in found.items() if (key, step) not in self.sent)
        while batch := list(islice(missing, METRICS)):
            self.client.log_batch(self.run, metrics=batch)
            self.sent |= {(metric.key, step) for metric in batch}

    def disconnect(self, *, finished: bool) -> None:
        self.client.set_terminated(self.run, status="FINISHED" if finished else "KILLED")


def text(value: Any) -> str:
    """A setting as the text of a parameter or tag."""
    return (value if isinstance(value, str) else json.dumps(value))[:LENGTH]
