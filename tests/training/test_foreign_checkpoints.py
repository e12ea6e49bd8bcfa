"""A checkpoint with a valid checksum may still not fit the run: it is set aside, and the one before it is used."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Run
from pufferfish_bench.distributed.surgery import fingerprint
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.trainer import Stopped
from pufferfish_bench.training import checkpoints
from tests.support.training import EPOCHS_TRAINED, METHODS, STEPS, record, train

STOP = 3 * STEPS + 2  # in the low-rank phase, after its first epoch
Change = Callable[[dict[str, Any], dict[str, Any]], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, METHODS["pufferfish"]()), folder


def stopped(folder: Path) -> list[Path]:
    """The two checkpoints of a run that was stopped, the older one first."""
    with pytest.raises(Stopped):
        train(folder, METHODS["pufferfish"](), stop_after=STOP)
    found = sorted((folder / "checkpoints").glob("*.pt"))
    assert [path.name for path in found] == ["epoch00003-step0000000.pt", "epoch00003-step0000002.pt"]
    return found


def forge(path: Path, change: Change) -> Path:
    """Change the contents of a checkpoint and give it a valid checksum; returns its new path."""
    state = checkpoints.read(path)
    changed = change(state["shared"], state["local"])
    path.unlink()
    shared = state["shared"]
    if isinstance(shared.get("epoch"), int) and isinstance(shared.get("step"), int) and changed is None:
        path = path.with_name(checkpoints.name(shared))  # keep the file name consistent with the contents
    checkpoints.write(path, state if changed is None else changed)
    return path


def setting(half: str, *keys: Any, to: Any) -> Change:
    def change(shared: dict[str, Any], local: dict[str, Any]) -> None:
        found = {"shared": shared, "local": local}[half]
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = to

    return change


def without(half: str, key: str) -> Change:
    return lambda shared, local: {"format": 2, "shared": shared, "local": local}[half].pop(key) and None


LOW_RANK = ("operations", 1, "layers", "conv2", "rank")
CHANGES: dict[str, Change] = {
    "a list": lambda shared, local: [1, 2],
    "an empty object": lambda shared, local: {},
    "empty halves": lambda shared, local: {"format": 2, "shared": {}, "local": {}},
    "no object in it": lambda shared, local: {"format": 2, "shared": 7, "local": local},
    "a tensor": lambda shared, local: torch.zeros(3),
    **{
        f"without {key}": without("shared", key)
        for key in ("phase", "phase_start", "learning_rate", "history", "operations", "model", "optimizer", "method")
    },
    **{f"without {key}": without("local", key) for key in ("random", "buffers", "reducer", "tally", "watch", "task")},
    "no epoch": lambda shared, local: {"format": 2, "shared": {**shared, "epoch": None}, "local": local},
    "an epoch that the name does not have": lambda shared, local: {"format": 2, "shared": {**shared, "epoch": 2}, "local": local},
    "the last epoch": lambda shared, local: shared.update(epoch=EPOCHS_TRAINED, step=0),
    "an epoch beyond the plan": lambda shared, local: shared.update(epoch=99, step=0, history=[0.0] * 99),
    "a step beyond the epoch": setting("shared", "step", to=STEPS + 1),
    "a negative step": lambda shared, local: {"format": 2, "shared": {**shared, "step": -1}, "local": local},
    "a phase beyond the plan": lambda shared, local: shared.update(phase=2, operations=[None, None, None]),
    "a negative phase": setting("shared", "phase", to=-1),
    "an earlier phase": lambda shared, local: shared.update(phase=0, operations=[None]),
    "a phase that begins later": setting("shared", "phase_start", to=4),
    "a short history": setting("shared", "history", to=[1.0]),
    "a history of words": setting("shared", "history", to=["a", "b", "c"]),
    "an operation too many": setting("shared", "operations", 0, to={"layers": {}}),
    "no operation": setting("shared", "operations", 1, to=None),
    "a layer that is not there": setting("shared", "operations", 1, "layers", "nope", to={"rank": 1}),
    "the model itself as a layer": setting("shared", "operations", 1, "layers", "", to={"rank": 1}),
    **{f"a rank of {rank!r}": setting("shared", *LOW_RANK, to=rank) for rank in (0, -1, 10**12, "4", 2.0, True, None)},
    "another rank": setting("shared", *LOW_RANK, to=1),
    "another shape": setting("shared", "model", "fc2.bias", to=torch.zeros(5)),
    "no tensor": setting("shared", "model", "fc2.bias", to=[0.0] * 4),
    "another layer": setting("shared", "model", "fc9.bias", to=torch.zeros(4)),
    "another buffer": setting("local", "buffers", "norm.running_mean", to=torch.zeros(9)),
    "another momentum": setting("shared", "optimizer", "state", 0, "momentum_buffer", to=torch.zeros(2)),
    "a parameter that is not there": setting("shared", "optimizer", "state", 99, to={}),
    "another weight decay": setting("shared", "optimizer", "param_groups", 0, "weight_decay", to="abc"),
    "other parameters": setting("shared", "optimizer", "param_groups", 0, "params", to=[0]),
    "no random state": setting("local", "random", to={}),
    "another random state": setting("local", "random", "cpu", to=torch.zeros(8, dtype=torch.uint8)),
    "the rows of the warm-up are words": setting("shared", "method", "rows", to=[{"stable_rank": "abc"}]),
    "masks that are none": setting("shared", "method", "masks", to={"masks": [{"norm": 1}]}),
    "seconds that are words": setting("local", "watch", "seconds", to={"forward": "abc"}),
    "messages that are none": setting("local", "tally", "messages", to=[1]),
    "losses that are words": setting("local", "tally", "loss_sum", to="abc"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_that_does_not_fit_is_set_aside_and_the_one_before_it_is_used(
    whole: tuple[Run, Path], change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    _, newest = stopped(tmp_path)
    forged = forge(newest, CHANGES[change])
    resumed = train(tmp_path, METHODS["pufferfish"]())
    assert fingerprint(resumed.model) == fingerprint(whole[0].model)
    assert record(tmp_path) == record(whole[1])
    (warning,) = caplog.messages
    assert f"{forged.name} is damaged" in warning
    assert "falling back on the one before it" in warning
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.damaged")] == [forged.with_suffix(".damaged").name]
    assert read_json(tmp_path / RUN)["resumed"][0]["epoch"] == 3


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_malicious_pickle_is_not_executed_and_the_run_resumes(whole: tuple[Run, Path], tmp_path: Path):
    _, newest = stopped(tmp_path / "run")
    checkpoints.write(newest, {"shared": Evil(tmp_path / "ran"), "local": {}})
    resumed = train(tmp_path / "run", METHODS["pufferfish"]())
    assert fingerprint(resumed.model) == fingerprint(whole[0].model)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("change", ["another random state", "another shape", "a rank of 0", "another momentum"])
def test_when_no_checkpoint_fits_the_run_starts_over_and_ends_the_same(
    whole: tuple[Run, Path], change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for path in stopped(tmp_path):
        forge(path, CHANGES[change])
    resumed = train(tmp_path, METHODS["pufferfish"]())
    assert fingerprint(resumed.model) == fingerprint(whole[0].model)
    assert record(tmp_path) == record(whole[1])
    assert ["starting from the beginning" in warning for warning in caplog.messages] == [False, True]


def test_a_checkpoint_that_claims_to_be_the_last_does_not_finish_a_run(tmp_path: Path):
    def at_the_end(shared: dict[str, Any], local: dict[str, Any]) -> None:
        history = [*shared["history"], *[0.0] * (EPOCHS_TRAINED - len(shared["history"]))]
        shared.update(epoch=EPOCHS_TRAINED, step=0, history=history)

    _, newest = stopped(tmp_path)
    forge(newest, at_the_end)
    (tmp_path / EPOCHS).unlink()
    with pytest.raises(InputError, match=r"epochs are trained, but .*epochs\.jsonl has no rows"):
        train(tmp_path, METHODS["pufferfish"]())
    assert "finished" not in read_json(tmp_path / RUN)


def lines(path: Path, keep: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(keep(path.read_text().splitlines(keepends=True))))


@pytest.mark.parametrize(
    ("keep", "missing"),
    [(lambda rows: [], [0, 1, 2]), (lambda rows: rows[:1], [1, 2]), (lambda rows: rows[1:], [0]), (lambda rows: rows, [])],
)
def test_missing_rows_are_reported_and_the_record_is_marked_incomplete(
    keep: Callable, missing: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    stopped(tmp_path)
    lines(tmp_path / EPOCHS, keep)
    train(tmp_path, METHODS["pufferfish"]())
    found = read_json(tmp_path / RUN)
    assert found.get("incomplete", []) == missing
    assert "finished" in found
    rows = read_rows(tmp_path / EPOCHS)
    assert [row["epoch"] for row in rows] == sorted({*range(EPOCHS_TRAINED)} - {*missing})
    assert found["summary"]["epochs"] == EPOCHS_TRAINED
    low_rank = [row["test_accuracy"] for row in rows if row["phase"] == "low_rank"]
    assert found["summary"]["best_test_accuracy"] == max(low_rank)
    assert len(caplog.messages) == bool(missing)
    assert all("incomplete: epochs.jsonl has no row of epoch" in warning for warning in caplog.messages)


def test_a_record_stays_incomplete_after_another_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    stopped(tmp_path)
    lines(tmp_path / EPOCHS, lambda rows: rows[:2])
    caplog.set_level(logging.WARNING)
    with pytest.raises(Stopped):
        train(tmp_path, METHODS["pufferfish"](), stop_after=2)
    train(tmp_path, METHODS["pufferfish"]())
    assert read_json(tmp_path / RUN)["incomplete"] == [2]
