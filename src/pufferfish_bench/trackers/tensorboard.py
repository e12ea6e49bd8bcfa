"""TensorBoard: event files in the run's directory."""

import json
from itertools import pairwise
from typing import Any

from pufferfish_bench.base.flat import flat
from pufferfish_bench.records.files import SECTIONS, Row
from pufferfish_bench.records.record import step_sections
from pufferfish_bench.trackers.tracker import Progress, Tracker, figures

START = "breakdown/start"


class TensorBoard(Tracker):
    """Numbers of a row are scalars, the sections of a step a stacked chart, phases text, settings hyper-parameters."""

    writer: Any = None
    next_epoch: int | None = None  # the first one that is not written yet

    def connect(self, progress: Progress) -> None:
        from torch.utils.tensorboard import SummaryWriter  # importing it takes a second, and nothing else needs it

        folder = self.directory / "tensorboard"
        if self.next_epoch is None:
            # an epoch is written before its checkpoint, so files have all epochs before a resume; later ones are written again
            self.next_epoch = progress.resumed_at if folder.is_dir() and any(folder.iterdir()) else 0
        if self.writer is not None:  # left by an error
            self.writer.close()
        self.writer = SummaryWriter(folder, purge_step=self.next_epoch)
        self.writer.file_writer.add_summary(stacked_chart())

    def send(self, progress: Progress) -> None:
        assert self.next_epoch is not None
        for row in progress.rows:
            if row["epoch"] < self.next_epoch:
                continue
            for name, value in (figures(row) | stacked(row)).items():
                self.writer.add_scalar(name, value, row["epoch"])
            if progress.phases.get(row["phase"]) == row["epoch"]:
                self.writer.add_text("phase", row["phase"], row["epoch"])
            self.writer.flush()
            self.next_epoch = row["epoch"] + 1
        if progress.finished:
            self.write_results(progress)

    def write_results(self, progress: Progress) -> None:
        """The final results as scalars, and the settings as hyper-parameters with these results as their metrics."""
        from torch.utils.tensorboard.summary import hparams

        for name, value in progress.results.items():
            self.writer.add_scalar(name, value, self.next_epoch)
        settings = {key: plain(value) for key, value in flat(self.manifest.get("settings", {})).items()}
        # not writer.add_hparams: it writes them into a run of its own, in a directory below
        for summary in hparams(settings, dict(progress.results)):
            self.writer.file_writer.add_summary(summary)
        self.writer.flush()

    def disconnect(self, *, finished: bool) -> None:
        self.writer.close()


def plain(value: Any) -> Any:
    """A setting as the HParams page takes it."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def stacked(row: Row) -> dict[str, float]:
    """For each section of a step, the milliseconds of a step up to its end; empty if no step was timed."""
    step = step_sections([row])
    if not step:
        return {}
    total, ends = 0.0, {START: 0.0}
    for section in SECTIONS:
        total += 1000 * step[section]
        ends[f"breakdown/{section}"] = total
    return ends


def stacked_chart() -> Any:
    """The layout of a chart whose bands are the sections of a step, one above the other."""
    from tensorboard.plugins.custom_scalar import layout_pb2
    from torch.utils.tensorboard.summary import custom_scalars

    ends = [START, *(f"breakdown/{section}" for section in SECTIONS)]
    bands = [layout_pb2.MarginChartContent.Series(value=upper, lower=lower, upper=upper) for lower, upper in pairwise(ends)]
    chart = layout_pb2.Chart(title="sections of a step, stacked (ms)", margin=layout_pb2.MarginChartContent(series=bands))
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="breakdown", chart=[chart])])
    found = custom_scalars({})  # which itself can put only one band into a chart
    found.value[0].tensor.string_val[:] = [layout.SerializeToString()]
    return found
