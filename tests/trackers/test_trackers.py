"""The laws of trackers: whatever they meet, the run is the same, and in the end they have all of it, each epoch once."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from hypothesis import given
from hypothesis import strategies as st
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from pufferfish_bench.base.flat import flat
from pufferfish_bench.core import Method, Observer, Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.records.files import EPOCHS, RUN, SECTIONS, read_json, read_rows
from pufferfish_bench.trackers import tracker as trackers
from pufferfish_bench.trackers.mlflow import TAG, MLflow
from pufferfish_bench.trackers.tensorboard import TensorBoard
from pufferfish_bench.trackers.tracker import Progress, Tracker, figures
from pufferfish_bench.trackers.wandb import WeightsAndBiases
from pufferfish_bench.trackers.wandb_file import logged_steps, records
from pufferfish_bench.trainer import Stopped
from tests.support.trackers import mlflow_curves, mlflow_run, tensorboard, tensorboard_curves, wandb_records
from tests.support.training import METHODS, record, train

MANIFEST = {"settings": {"name": "tiny", "seed": 5, "model": {"net": {"width": 0.5, "stem": None}}, "milestones": [2, 3]}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(trackers, "PATIENCE", 600.0)  # a busy machine may need longer than a run waits
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture
def plain(tmp_path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Weights and rows of a run without trackers."""
    run = train(tmp_path / "plain", METHODS["pufferfish"]())
    return fingerprint(run.model), record(tmp_path / "plain")


class Faulty(Tracker):
    """Keeps what it is sent; fails or hangs in the calls that a test chooses."""

    def __init__(self, directory: Path, fails: Callable[[str, int], bool] = lambda where, epochs: False, hangs: bool = False):
        super().__init__(directory=directory, manifest=MANIFEST)
        self.fails = fails
        self.hangs = hangs
        self.got: list[Progress] = []
        self.calls: list[str] = []

    def meet(self, where: str, epochs: int) -> None:
        self.calls.append(where)
        if self.hangs:
            threading.Event().wait(60)
        if self.fails(where, epochs):
            raise ConnectionError("the server is away")

    def connect(self, progress: Progress) -> None:
        self.meet("connect", len(progress.rows))

    def send(self, progress: Progress) -> None:
        self.meet("send", len(progress.rows))
        self.got.append(progress)

    def disconnect(self, *, finished: bool) -> None:
        self.meet("disconnect", -1)


@pytest.mark.parametrize("where", ["connect", "send", "disconnect"])
def test_a_failing_tracker_does_not_change_the_run_and_warns_once(
    tmp_path: Path, plain: tuple[str, list], caplog: pytest.LogCaptureFixture, where: str
):
    faulty = Faulty(tmp_path / "run", lambda place, epochs: place == where)
    run = train(tmp_path / "run", METHODS["pufferfish"](), observers=[faulty])
    assert (fingerprint(run.model), record(tmp_path / "run")) == plain
    assert "finished" in read_json(tmp_path / "run" / RUN)
    assert [each.getMessage()[:25] for each in caplog.records if each.levelno >= logging.WARNING] == ["Faulty: the server is awa"]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_hanging_or_failing_tracker_delays_the_run_only_once(
    tmp_path: Path, plain: tuple[str, list], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hangs: bool
):
    waits: list[float | None] = []

    class Counted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0.01 if hangs and timeout == trackers.PATIENCE else timeout)

    monkeypatch.setattr(trackers.threading, "Event", Counted)
    faulty = Faulty(tmp_path / "run", lambda where, epochs: not hangs, hangs=hangs)
    run = train(tmp_path / "run", METHODS["pufferfish"](), observers=[faulty])
    assert (fingerprint(run.model), record(tmp_path / "run")) == plain
    assert waits.count(trackers.PATIENCE) == 2  # when it hangs or fails first, and at the end
    assert ("has not received everything" in caplog.text) == hangs


def test_a_tracker_that_recovers_receives_what_it_lacks(tmp_path: Path):
    flaky = Faulty(tmp_path / "run", lambda where, epochs: where == "send" and 1 <= epochs <= 3)
    train(tmp_path / "run", METHODS["pufferfish"](), observers=[flaky])
    assert [row["epoch"] for row in flaky.got[-1].rows] == [0, 1, 2, 3]
    assert flaky.got[-1].finished
    assert flaky.got[-1].phases == {"warmup": 0, "low_rank": 2}
    assert flaky.calls.count("connect") > 1
    assert flaky.calls[-1] == "disconnect"


def test_a_dead_server_of_mlflow_does_not_change_the_run(
    tmp_path: Path, plain: tuple[str, list], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "*")
    away = MLflow(uri="http://127.0.0.1:9", experiment="e", directory=tmp_path / "run", manifest=MANIFEST)
    run = train(tmp_path / "run", METHODS["pufferfish"](), observers=[away])
    assert (fingerprint(run.model), record(tmp_path / "run")) == plain
    assert len([each for each in caplog.records if each.getMessage().startswith("MLflow: ")]) == 1


def test_weights_and_biases_without_a_key_says_what_to_do(
    tmp_path: Path, plain: tuple[str, list], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    stranger = WeightsAndBiases(project="p", entity=None, mode="online", directory=tmp_path / "run", manifest=MANIFEST)
    run = train(tmp_path / "run", METHODS["pufferfish"](), observers=[stranger])
    assert (fingerprint(run.model), record(tmp_path / "run")) == plain
    assert "use `wandb login`, or tracker.wandb.mode=offline" in caplog.text


@pytest.mark.parametrize(
    "stop_after", [1, 7, 10, 14, 27]
)  # in the first epoch, at its end, in the second, at the switch, at the end
def test_a_stopped_run_continues_in_tensorboard_and_mlflow_without_an_epoch_twice(tmp_path: Path, stop_after: int):
    def observers() -> list[Tracker]:
        common = {"directory": tmp_path / "run", "manifest": MANIFEST}
        return [TensorBoard(**common), MLflow(uri=str(tmp_path / "store"), experiment="e", **common)]

    with pytest.raises(Stopped):
        train(tmp_path / "run", METHODS["pufferfish"](), stop_after=stop_after, observers=observers())
    assert mlflow_run(tmp_path / "run", str(tmp_path / "store"))[1].info.status == "KILLED"
    train(tmp_path / "run", METHODS["pufferfish"](), observers=observers())
    assert mlflow_run(tmp_path / "run", str(tmp_path / "store"))[1].info.status == "FINISHED"
    for curves in (tensorboard_curves(tmp_path / "run"), mlflow_curves(tmp_path / "run", str(tmp_path / "store"))):
        losses = {row["epoch"]: [pytest.approx(row["loss"], rel=1e-6)] for row in read_rows(tmp_path / "run" / EPOCHS)}
        assert curves["loss"] == losses
        assert len(losses) == 4


def test_an_epoch_that_is_trained_again_is_there_once(tmp_path: Path):
    """The process dies after the third epoch was logged, and before its checkpoint."""

    class Death(Observer):
        def epoch_ended(self, run: Run, row: dict[str, Any]) -> None:
            if row["epoch"] == 2:
                raise MemoryError("killed")

    def observers() -> list[Tracker]:
        common = {"directory": tmp_path / "run", "manifest": MANIFEST}
        return [TensorBoard(**common), MLflow(uri=str(tmp_path / "store"), experiment="e", **common)]

    with pytest.raises(MemoryError):
        train(tmp_path / "run", METHODS["pufferfish"](), observers=[*observers(), Death()], checkpoint_every=2)
    assert len(read_rows(tmp_path / "run" / EPOCHS)) == 3
    assert len(tensorboard_curves(tmp_path / "run")["loss"]) == 3
    train(tmp_path / "run", METHODS["pufferfish"](), observers=observers(), checkpoint_every=2)
    for curves in (tensorboard_curves(tmp_path / "run"), mlflow_curves(tmp_path / "run", str(tmp_path / "store"))):
        assert {step: len(values) for step, values in curves["loss"].items()} == {0: 1, 1: 1, 2: 1, 3: 1}
        assert all(len(values) == 1 for steps in curves.values() for values in steps.values())


def test_a_row_that_a_kill_cut_off_in_mlflow_is_completed(tmp_path: Path):
    here, uri = tmp_path / "run", str(tmp_path / "store")
    with pytest.raises(Stopped):
        train(here, Method(), stop_after=8)
    (here / "tracker_id").write_text("0123456789abcdef\n")
    client = MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("e"), tags={TAG: "0123456789abcdef"})
    (row,) = read_rows(here / EPOCHS)
    client.log_batch(run.info.run_id, metrics=[Metric(name, figures(row)[name], 0, 0) for name in ("loss", "test_accuracy")])
    train(here, Method(), observers=[MLflow(uri=uri, experiment="e", directory=here, manifest=MANIFEST)])
    curves = mlflow_curves(here, uri)
    for row in read_rows(here / EPOCHS):
        assert {name: curves[name][row["epoch"]] for name in figures(row)} == {
            name: [pytest.approx(value)] for name, value in figures(row).items()
        }


def test_a_run_started_from_the_beginning_is_another_run_of_the_tracker(tmp_path: Path):
    names = set()
    for _ in range(2):
        train(tmp_path / "run", Method(), observers=[Faulty(tmp_path / "run")])
        names.add(Faulty(tmp_path / "run").run_id())
        for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert len(names) == 2


def test_tensorboard_has_the_settings_and_results_on_its_page_of_hyper_parameters(tmp_path: Path):
    run = train(tmp_path, METHODS["pufferfish"](), observers=[TensorBoard(directory=tmp_path, manifest=MANIFEST)])
    assert [path.is_file() for path in (tmp_path / "tensorboard").iterdir()] == [True]
    events = tensorboard(tmp_path)
    content = events.summary_metadata
    start, experiment = (
        plugin_data_pb2.HParamsPluginData.FromString(content[tag].plugin_data.content)
        for tag in (metadata.SESSION_START_INFO_TAG, metadata.EXPERIMENT_TAG)
    )
    found = start.session_start_info.hparams
    assert found.keys() == flat(MANIFEST["settings"]).keys()
    assert (found["name"].string_value, found["seed"].number_value) == ("tiny", 5)
    assert (found["model.net.stem"].string_value, found["milestones"].string_value) == ("null", "[2, 3]")
    metrics = {info.name.tag for info in experiment.experiment.metric_infos}
    assert "final/test_accuracy" in metrics
    assert metrics <= set(events.Tags()["scalars"])
    (last,) = events.Scalars("final/test_accuracy")
    assert last.value == pytest.approx(-run.history[-1])
    assert metadata.SESSION_END_INFO_TAG in content


def test_the_bands_of_the_stacked_chart_are_the_sections_of_a_step(tmp_path: Path):
    train(tmp_path, Method(), observers=[TensorBoard(directory=tmp_path, manifest={})], untimed_steps=1)
    events = tensorboard(tmp_path)
    (entry,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(entry.tensor_proto.string_val[0])
    (band_of,) = [chart.margin.series for category in layout.category for chart in category.chart]
    assert [band.value for band in band_of] == [f"breakdown/{section}" for section in SECTIONS]
    for row in read_rows(tmp_path / EPOCHS):
        at = {tag: events.Scalars(tag)[row["epoch"]].value for band in band_of for tag in (band.lower, band.upper)}
        heights = [at[band.upper] - at[band.lower] for band in band_of]
        expected = [1000 * row.get(f"seconds_{section}", 0.0) / row["timed_steps"] for section in SECTIONS]
        assert heights == pytest.approx(expected, abs=1e-3)
        whole = row["seconds"] - row.get("seconds_first_steps", 0.0)
        assert at[band_of[-1].upper] == pytest.approx(1000 * whole / row["timed_steps"], rel=1e-5)
        assert [one.lower for one in band_of[1:]] == [one.upper for one in band_of[:-1]]


def test_steps_are_read_back_from_files_of_weights_and_biases_also_when_they_are_cut_off(tmp_path: Path):
    settings = wandb.Settings(console="off", silent=True)
    run = wandb.init(project="p", mode="offline", id="abc", dir=tmp_path, settings=settings, reinit="create_new")
    for step in range(40):
        run.log({"text": "x" * 3000, "loss": 1.0 / (step + 1)}, step=step, commit=True)  # a row crosses a block of 32 KiB
    run.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    said = [each["history"]["item"]["_step"] for each in wandb_records(tmp_path) if each["type"] == "history"]
    assert logged_steps([file]) == set(said) == set(range(40))
    content = file.read_bytes()
    assert len(content) > 3 * 32768
    sizes = []
    for end in range(0, len(content), 997):
        file.write_bytes(content[:end])
        steps = logged_steps([file])
        assert steps == set(range(len(steps)))
        sizes.append(len(steps))
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 39


@pytest.mark.parametrize("spare", range(10))  # bytes between the first record and the end of its block
def test_a_record_may_end_anywhere_in_a_block(spare: int):
    def fragment(kind: int, content: bytes) -> bytes:
        return bytes(4) + len(content).to_bytes(2, "little") + bytes([kind]) + content

    first, second = b"a" * (32768 - 7 - 7 - spare), b"b" * 50
    end = bytes(spare) + fragment(1, second) if spare < 7 else fragment(2, second[: spare - 7]) + fragment(4, second[spare - 7 :])
    log = b":W&B" + bytes(3) + fragment(1, first) + end
    assert list(records(log)) == [first, second]
    assert list(records(log[:-1])) == [first]


@given(
    st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()),
    st.lists(st.tuples(st.sampled_from(["allreduce", "allgather"]), st.integers(0, 10**9))),
)
def test_every_number_of_a_row_is_logged_and_the_bytes_of_a_collective_add_up(row: dict[str, Any], messages: list):
    found = figures({**row, "messages": messages, "epoch": 3})
    expected = {key for key, value in row.items() if isinstance(value, int | float) and key not in ("epoch", "messages")}
    sent = {f"messages/{name}" for name, _ in messages}
    assert len(found) == len(expected) + len(sent)
    assert sum(found[name] for name in sent) == sum(size for _, size in messages)
    assert all(type(value) in (int, float) for value in found.values())
