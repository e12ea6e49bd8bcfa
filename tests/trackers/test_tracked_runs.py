"""Runs of the command line with all trackers, read back with the packages' own readers."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pufferfish_bench.cli import run as run_command
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.trackers import tracker
from tests.support.commands import SMALL, SMALL_TEXT, Command, interrupt
from tests.support.repository import REPOSITORY
from tests.support.torchrun import TINY, TORCHRUN, environment
from tests.support.trackers import (
    Curves,
    by_step,
    mlflow_curves,
    mlflow_run,
    tensorboard,
    tensorboard_curves,
    wandb_files,
    wandb_records,
)
from tests.support.training import MEASURED

PAGE = (REPOSITORY / "docs" / "tracking.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
ALL = "tracker=[tensorboard,wandb,mlflow]"
FOLDER = "tracker.mlflow.uri=store"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PUFFERFISH_TRACKER", raising=False)
    monkeypatch.setattr(tracker, "PATIENCE", 600.0)  # a busy machine may need longer than a run waits


def wandb_history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def wandb_curves(records: list[dict[str, Any]]) -> Curves:
    rows = wandb_history(records)
    names = {name for row in rows for name in row if not name.startswith("_") and name != "phase"}
    return {name: by_step((row["_step"], row[name]) for row in rows if name in row) for name in names}


def wandb_summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records:
        if record["type"] == "summary":
            found |= record["summary"]["update"]
    return found


def assert_complete(curves: Curves, rows: list[dict[str, Any]]) -> None:
    """Check that each number of each row is there exactly once; those that are not measured are equal to the record."""
    for row in rows:
        for key, value in row.items():
            if not isinstance(value, int | float) or key == "epoch":
                continue
            name = f"sections/{key.removeprefix('seconds_')}" if key.startswith("seconds_") else key
            logged = curves[name].get(row["epoch"], [])
            assert len(logged) == 1, (name, row["epoch"], logged)
            if not key.startswith(MEASURED):
                assert logged[0] == pytest.approx(float(value), rel=1e-6), (name, row["epoch"])
    assert curves["loss"].keys() == {row["epoch"] for row in rows}


def test_a_run_that_is_killed_and_resumed_is_one_complete_run_in_every_tracker(arguments, tmp_path: Path):
    words = arguments(*SMALL, "method=pufferfish", "run_dir=run", "warmup_epochs=1", "checkpoint_every=2", ALL)
    here = tmp_path / "run"
    killed = interrupt(words, tmp_path, signal.SIGKILL, lambda: len(read_rows(here / EPOCHS)) >= 3)
    assert killed.returncode == -signal.SIGKILL
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "warning" not in killed.stderr + done.stderr
    rows, record, uri = read_rows(here / EPOCHS), read_json(here / RUN), f"sqlite:///{tmp_path}/mlflow.db"
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert record["resumed"]
    (accuracy,) = {record["summary"]["test_accuracy"]}

    assert_complete(tensorboard_curves(here), rows)
    assert {path.is_file() for path in (here / "tensorboard").iterdir()} == {True}
    assert [(text.step, text.tensor_proto.string_val) for text in tensorboard(here).Tensors("phase/text_summary")] == [
        (0, [b"warmup"]),
        (1, [b"low_rank"]),
    ]

    assert_complete(mlflow_curves(here, uri), rows)
    _, found = mlflow_run(here, uri)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == record["settings"]["name"]
    assert found.data.params["method._target_"] == record["settings"]["method"]["_target_"]
    assert found.data.params["batch_size"] == "16"
    assert found.data.metrics["final/test_accuracy"] == accuracy
    assert (found.data.tags["phase"], found.data.tags["phase.low_rank"]) == ("low_rank", "from epoch 2")
    assert found.data.tags["versions.torch"] == record["versions"]["torch"]

    assert len(wandb_files(here)) == 2  # of the killed process and of the resumed one
    records = wandb_records(here)
    assert_complete(wandb_curves(records), rows)
    assert [row["phase"] for row in wandb_history(records)] == [row["phase"] for row in rows]
    runs = [each["run"] for each in records if each["type"] == "run"]
    assert {each["run_id"] for each in runs} == {(here / "tracker_id").read_text().strip()}
    assert json.loads(json.dumps(runs[-1]["config"]["update"]))["settings"]["batch_size"] == 16
    assert wandb_summary(records)["final/test_accuracy"] == accuracy
    assert wandb_summary(records)["phases/low_rank"] == 1


def test_the_translations_of_a_run_are_files_of_its_trackers(invoke: Command, tmp_path: Path):
    done = invoke("model=transformer", *SMALL_TEXT["transformer"], "epochs=1", "run_dir=run", "tracker=[wandb,mlflow]", FOLDER)
    assert done.returncode == 0, done.stderr
    here = tmp_path / "run"
    client, found = mlflow_run(here, "store")
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert names
    for name in names:
        written = (here / name).read_text()
        assert Path(client.download_artifacts(found.info.run_id, name, str(tmp_path))).read_text() == written
        (saved,) = here.glob(f"wandb/offline-run-*/files/{name}")
        assert saved.read_text() == written
    saved = {file["path"] for each in wandb_records(here) if each["type"] == "files" for file in each["files"]["files"]}
    assert names <= saved


def test_each_run_of_a_sweep_is_a_run_of_the_tracker_outside_the_identity(invoke: Command, tmp_path: Path):
    store = str(tmp_path / "store")  # MLflow remembers relative paths of this process
    tiny = (*SMALL, "epochs=1", "dataset.train_images=32", "seed=1,2")
    assert invoke("--multirun", *tiny, "tracker=none").returncode == 0
    folders = sorted((tmp_path / "results" / "runs").iterdir())
    assert not any((folder / "tensorboard").exists() or (folder / "tracker_id").exists() for folder in folders)
    for folder in folders:
        (folder / RUN).unlink()  # as if it had been killed at its end
    assert invoke("--multirun", *tiny, "tracker=[mlflow,tensorboard]", f"tracker.mlflow.uri={store}").returncode == 0
    assert sorted((tmp_path / "results" / "runs").iterdir()) == folders
    assert {mlflow_run(folder, store)[1].data.params["seed"] for folder in folders} == {"1", "2"}
    for folder in folders:  # the epochs that were trained without a tracker are there too
        assert_complete(mlflow_curves(folder, store), read_rows(folder / EPOCHS))
        assert_complete(tensorboard_curves(folder), read_rows(folder / EPOCHS))


@pytest.mark.xdist_group("workers")
def test_only_rank_0_logs(tmp_path: Path):
    words = [*TORCHRUN, "-m", "pufferfish_bench", *TINY, "epochs=1", "run_dir=run", "tracker=[tensorboard,mlflow]", FOLDER]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    curves = mlflow_curves(tmp_path / "run", str(tmp_path / "store"))
    rows = read_rows(tmp_path / "run" / EPOCHS)
    assert_complete(curves, rows)
    assert curves["messages/allreduce"][0] == [sum(size for _, size in rows[0]["messages"])]
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tracker=wnadb",), "tracker=wnadb is not known (did you mean wandb?); allowed: mlflow, none, tensorboard, wandb"),
        (("tracker=[tensorboard,wnadb]",), "tracker=wnadb is not known (did you mean wandb?)"),
        (("tracker=[]",), "tracker=[] is not a valid choice; allowed: mlflow, none, tensorboard, wandb"),
        (("model=[resnet18,vgg19]",), "model=[resnet18,vgg19] is not a valid choice"),
        (("tracker=wandb", "tracker.wandb.projct=x"), "did you mean tracker.wandb.project=x?"),
        (("tracker=wandb", "tracker.wandb.mode=sometimes"), "tracker.wandb.mode=sometimes: one of online, offline or null is"),
        (("tracker=mlflow", "tracker.mlflow.uri=3"), "tracker.mlflow.uri=3: a string is expected"),
    ],
)
def test_a_wrong_choice_or_setting_is_refused_before_training(invoke: Command, tmp_path: Path, words: tuple[str], sentence: str):
    done = invoke(*SMALL, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_folder_named_like_a_package_is_not_taken_for_it(tmp_path: Path):
    (tmp_path / "wandb").mkdir()
    hide = "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"
    ask = "from importlib.util import find_spec; from pufferfish_bench.base.extras import is_installed"
    program = f"{ask}; {hide}; sys.path.insert(0, '.'); print(find_spec('wandb') is None, is_installed('wandb'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow", "torch"])
def test_a_package_is_not_imported_unless_a_tracker_that_needs_it_is_chosen(package: str):
    program = (
        "import sys; from pufferfish_bench.config.build import composed; from pufferfish_bench.cli import run\n"
        "composed(['tracker=[tensorboard,wandb,mlflow]'])\n"
        + ("" if package == "torch" else "import pufferfish_bench.trackers.wandb, pufferfish_bench.trackers.mlflow\n")
        + ("" if package == "torch" else "import pufferfish_bench.trackers.tensorboard\n")
        + f"print({package!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


@pytest.mark.xdist_group("tracking")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs_as_printed(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    # the default, with an absolute path: MLflow remembers relative ones of this process, whatever the current directory is
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    monkeypatch.setattr(sys, "argv", words)
    run_command.run()
    said = capsys.readouterr()
    assert "warning" not in said.err
    directories = [folder / name for name in re.findall(r"->  (\S+)", said.out)]
    assert directories
    for here in directories:
        rows = read_rows(here / EPOCHS)
        assert (here / "tensorboard").exists() == ("tensorboard" in command)
        if "wandb" in command:
            assert_complete(wandb_curves(wandb_records(here)), rows)
        if "mlflow" in command:
            assert_complete(mlflow_curves(here, f"sqlite:///{folder}/mlflow.db"), rows)


def test_the_page_names_every_tracker_and_setting():
    for path in (REPOSITORY / "conf" / "tracker").glob("*.yaml"):
        assert f"`{path.stem}`" in PAGE
        for key in re.findall(r"^(?!_)(\w+):", path.read_text(), flags=re.MULTILINE):
            assert f"`tracker.{path.stem}.{key}`" in PAGE
