"""Weights & Biases: a run on a server, or in files that `wandb sync` uploads later."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pufferfish_bench.trackers.tracker import Progress, Tracker, figures
from pufferfish_bench.trackers.wandb_file import is_complete, logged_steps

log = logging.getLogger(__name__)

Mode = Literal["online", "offline"]
WAIT = 10.0  # seconds for the package's own process to write the end of a run


class WeightsAndBiases(Tracker):
    """Settings and conditions are the config, a row is a step of the history, the results are the summary."""

    package = "wandb"
    run: Any = None

    def __init__(self, *, project: str, entity: str | None, mode: Mode | None, directory: Path, manifest: Mapping[str, Any]):
        super().__init__(directory=directory, manifest=manifest)
        self.project = project
        self.entity = entity
        self.mode: Any = mode or os.environ.get("WANDB_MODE") or "online"
        self.sent: set[int] = set()  # epochs

    @property
    def label(self) -> str:
        return "Weights & Biases"

    def connect(self, progress: Progress) -> None:
        import wandb

        if self.run is not None:  # left by an error
            self.run.finish(exit_code=1)
        if self.mode == "online" and not wandb.login(prompt=False, verify=False):  # wandb.init would ask in the terminal
            raise RuntimeError("there is no API key; use `wandb login`, or tracker.wandb.mode=offline")
        folder, name = self.directory / "wandb", self.run_id()
        self.sent = logged_steps(self.offline_files()) if self.mode == "offline" else set()
        self.run = wandb.init(
            project=self.project, entity=self.entity, mode=self.mode, id=name, resume="allow", name=self.name,
            dir=self.directory, config={key: value for key, value in self.manifest.items() if key != "format"},
            reinit="create_new", settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        if self.mode == "online":
            self.sent = set(range(self.run.starting_step))
        upload = f"`wandb sync {folder}/offline-run-*` uploads it"
        log.info(f"{self.label}: {self.run.url if self.mode == 'online' else upload}")

    def offline_files(self) -> list[Path]:
        name = self.run_id()
        return list((self.directory / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))

    def send(self, progress: Progress) -> None:
        for row in progress.rows:
            if row["epoch"] not in self.sent:
                self.run.log({"epoch": row["epoch"], "phase": row["phase"], **figures(row)}, step=row["epoch"], commit=True)
                self.sent.add(row["epoch"])
        self.run.summary.update({f"phases/{name}": epoch for name, epoch in progress.phases.items()} | dict(progress.results))
        if progress.finished:
            for name in progress.files:
                self.write_file(name, progress.files[name])

    def write_file(self, name: str, content: str) -> None:
        (Path(self.run.dir) / name).write_text(content, encoding="utf-8")
        self.run.save(str(Path(self.run.dir) / name), base_path=self.run.dir, policy="now")

    def disconnect(self, *, finished: bool) -> None:
        import wandb

        self.run.finish(exit_code=0 if finished else 1)
        if self.mode != "offline":
            return
        wandb.teardown()  # ends the package's own process, which otherwise may write the end of the run much later
        deadline = time.monotonic() + WAIT
        while not any(map(is_complete, self.offline_files())) and time.monotonic() < deadline:
            time.sleep(0.1)
