"""The commands as a user meets them: real processes, real signals, real files."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from pufferfish_bench import checkpoints
from pufferfish_bench.records import EPOCHS, RUN, read_json, read_rows, write_json
from pufferfish_bench.report import compare, describe, warmup
from pufferfish_bench.report.measured import load
from pufferfish_bench.report.quantities import in_all
from tests.conftest import REPOSITORY, Command
from tests.reported import write_record

# Small enough for a second, long enough to be killed in the middle: 4 epochs of 25 steps.
DATA = ("dataset.train_images=400", "dataset.test_images=50", "batch_size=16")
SMALL = ("profile=smoke", "model.width=0.05", *DATA)
QUICK = (*SMALL, "run_dir=run")
SMALL_TEXT = {
    "lstm": ("profile=smoke", "model.hidden=16", "dataset.train_words=2000", "dataset.test_words=200"),
    "transformer": ("profile=smoke", "model.width=16", "dataset.train_pairs=60", "dataset.test_pairs=5"),
}
SHORTER = {"eb_train": ("method.masks=2",), "lth": ("method.levels=1",)}  # what else would take long, or warn
METHODS = sorted(path.stem for path in (REPOSITORY / "conf" / "method").glob("*.yaml"))
MODELS = sorted(path.stem for path in (REPOSITORY / "conf" / "model").glob("*.yaml"))


def final_state(directory: Path) -> dict[str, Any]:
    saved = checkpoints.read(sorted((directory / "checkpoints").glob("*.pt"))[-1])
    return saved["shared"] | saved["local"]


def assert_same_run(one: Path, other: Path) -> None:
    """Equal weights to the bit, equal records but for what was measured."""
    weights, others = (final_state(directory)["model"] for directory in (one, other))
    assert weights.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())
    measured = ("seconds", "slowest", "fastest", "evaluation", "peak_memory", "timed_steps")
    rows, other_rows = (
        [{key: value for key, value in row.items() if not key.startswith(measured)} for row in read_rows(directory / EPOCHS)]
        for directory in (one, other)
    )
    assert rows == other_rows


def interrupt(
    words: list[str], directory: Path, number: int, ready: Callable[[], bool], *, to_all: bool = False
) -> subprocess.CompletedProcess:
    """Start a run, send it a signal once `ready`, or to all its processes as a terminal does, and wait for its end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=directory, start_new_session=True, **pipes)
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    (os.killpg if to_all else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_embedded_data_and_leaves_its_files(invoke: Command, tmp_path: Path, method: str):
    finished = invoke(f"method={method}", *QUICK, *SHORTER.get(method, ()))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert "files:    run" in finished.stdout
    rows, record = read_rows(tmp_path / "run" / EPOCHS), read_json(tmp_path / "run" / RUN)
    assert [row["epoch"] for row in rows] == list(range(record["plan"][-1]["epochs"][1]))
    assert finished.stdout.count("\nepoch ") == len(rows) >= 4
    figures = {"loss", "test_accuracy", "learning_rate", "bytes_sent", "seconds", "parameters", "macs", "peak_memory"}
    assert {"phase"} | figures <= rows[0].keys()
    assert record["settings"]["method"]["_target_"]
    assert record["summary"]["parameters"] == rows[-1]["parameters"]
    assert {"commit", "dirty", "versions", "hardware", "world_size", "plan", "started", "finished"} <= record.keys()
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize("method", SHORTER)
@pytest.mark.parametrize("model", [model for model in MODELS if model.split("_")[0] not in SMALL_TEXT])
def test_every_model_of_images_is_pruned(invoke: Command, tmp_path: Path, model: str, method: str):
    tiny = ("dataset.train_images=48", "dataset.test_images=10", "epochs=3", "model.width=0.1")
    finished = invoke(f"model={model}", f"method={method}", *QUICK, *tiny, *SHORTER[method])
    assert finished.returncode == 0, finished.stderr
    first, *_, last = read_rows(tmp_path / "run" / EPOCHS)
    size = "nonzero_parameters" if method == "lth" else "parameters"
    assert last[size] < first[size]


@pytest.mark.parametrize("trigger", sorted(path.stem for path in (REPOSITORY / "conf" / "method" / "trigger").glob("*.yaml")))
def test_pufferfish_runs_with_every_trigger_and_its_record_says_when_each_would_have_fired(
    invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, trigger: str
):
    monkeypatch.setenv("COLUMNS", "200")  # so that no sentence is wrapped
    finished = invoke("method=pufferfish", f"method/trigger={trigger}", *QUICK, "warmup_epochs=3", "method.masks=2")
    assert finished.returncode == 0, finished.stderr
    rows, record = read_rows(tmp_path / "run" / EPOCHS), read_json(tmp_path / "run" / RUN)
    switched = [row["phase"] for row in rows].index("low_rank")
    assert record["operations"][0]["epoch"] == switched <= 3
    warmup.main([str(tmp_path / "run"), "--out", str(tmp_path / "signs")])
    said = capsys.readouterr().out
    assert "fixed_epoch (epoch 3)" in said
    assert record["operations"][0]["note"] in said
    assert (tmp_path / "signs.png").stat().st_size > 1000
    describe.show_run(tmp_path / "run", Console())
    said = capsys.readouterr().out
    assert all(layer in said for layer in record["operations"][0]["layers"])


def test_the_warm_up_of_the_method_is_what_its_trigger_waits_for(invoke: Command, tmp_path: Path):
    assert invoke("method=pufferfish", *QUICK, "method.warmup_epochs=2").returncode == 0
    assert [row["phase"] for row in read_rows(tmp_path / "run" / EPOCHS)] == ["warmup"] * 2 + ["low_rank"] * 2


@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs_with_pufferfish(invoke: Command, tmp_path: Path, model: str):
    small = SMALL_TEXT.get(model.split("_")[0], SMALL)
    finished = invoke(f"model={model}", "method=pufferfish", *small, "run_dir=run", "epochs=2")
    assert finished.returncode == 0, finished.stderr
    operation = read_json(tmp_path / "run" / RUN)["operations"][0]
    assert operation["layers"]
    assert all(0 < layer["energy"] <= 1 + 1e-6 for layer in operation["layers"].values())
    assert [row["phase"] for row in read_rows(tmp_path / "run" / EPOCHS)] == ["warmup", "low_rank"]


@pytest.mark.parametrize("rows_written", [0, 1, 3])  # in the warm-up, after the switch, at the end
def test_a_run_killed_in_the_middle_goes_on_to_the_same_end(invoke: Command, arguments, tmp_path: Path, rows_written: int):
    settings = ("method=pufferfish", *SMALL, "warmup_epochs=1")
    assert invoke(*settings, "run_dir=whole").returncode == 0
    words = arguments(*settings, "run_dir=killed")
    events = tmp_path / "killed" / "tensorboard"
    killed = interrupt(
        words, tmp_path, signal.SIGKILL, lambda: events.exists() and len(read_rows(tmp_path / "killed" / EPOCHS)) >= rows_written
    )
    assert killed.returncode == -signal.SIGKILL
    finished = invoke(*settings, "run_dir=killed")
    assert finished.returncode == 0, finished.stderr
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_and_a_resume_makes_the_run_whole(invoke: Command, arguments, tmp_path: Path, number: int):
    settings = ("method=pufferfish", *SMALL, "checkpoint_every=4")
    assert invoke(*settings, "run_dir=whole").returncode == 0
    words = arguments(*settings, "run_dir=stopped")
    stopped = interrupt(words, tmp_path, number, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 1)
    assert stopped.returncode == 128 + number
    assert "Traceback" not in stopped.stderr
    assert "the same command goes on" in stopped.stdout
    saved = final_state(tmp_path / "stopped")
    assert saved["epoch"] >= 1
    assert saved["step"] >= 1
    finished = invoke(*settings, "run_dir=stopped")
    assert f"resuming in epoch {saved['epoch'] + 1} after {saved['step']} steps" in finished.stdout
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    assert [entry["step"] for entry in read_json(tmp_path / "stopped" / RUN)["resumed"]] == [saved["step"]]


def test_a_finished_run_says_so_at_once_and_changes_nothing(invoke: Command, tmp_path: Path):
    invoke(*QUICK)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    finished = invoke(*QUICK)
    assert finished.returncode == 0
    assert "finished: test_accuracy" in finished.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_the_directory_is_the_settings_and_not_the_places(invoke: Command, tmp_path: Path):
    elsewhere = ("checkpoint_every=2", "rank_timeout=60", "rank_warning=5", "global_batch=7", "device=cpu", "data_root=elsewhere")
    names = []
    for overrides in ((), elsewhere, ("seed=2",), ("schedule.learning_rate=0.2",)):
        printed = invoke(*SMALL, *overrides, "epochs=1").stdout
        names.append(printed.splitlines()[0].split("->")[1].strip())
    assert names[0] == names[1]
    assert len(set(names)) == 3
    for name in names:
        assert name.startswith("results/runs/resnet18-synthetic_images-vanilla-smoke-seed")
        assert (tmp_path / name / RUN).exists()


def test_where_data_lies_and_comes_from_is_not_part_of_a_run(invoke: Command):
    places = ("data_root=nowhere", "data_root=elsewhere", "dataset.mirrors=[http://127.0.0.1:9/x]")
    headers = {invoke("dataset=cifar10", "data_root=nowhere", place).stdout.splitlines()[0] for place in places}
    assert len(headers) == 1
    assert invoke("dataset=cifar10", "data_root=nowhere", "dataset.train_images=9").stdout.splitlines()[0] not in headers


def test_a_directory_with_other_settings_is_refused_with_the_difference(invoke: Command):
    invoke(*QUICK, "epochs=1")
    refused = invoke(*QUICK, "epochs=2", "schedule.learning_rate=0.2")
    assert refused.returncode == 2
    assert "epochs: 1 -> 2" in refused.stderr
    assert "schedule.learning_rate: 0.1 -> 0.2" in refused.stderr


def test_two_processes_do_not_write_one_run(invoke: Command, arguments, tmp_path: Path):
    slow = (*SMALL, "run_dir=run", "epochs=200", "schedule.milestones=[100]")
    process = subprocess.Popen(arguments(*slow), cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        while not read_rows(tmp_path / "run" / EPOCHS):
            assert process.poll() is None
            time.sleep(0.01)
        refused = invoke(*slow)
    finally:
        process.kill()
        process.wait()
    assert refused.returncode == 2
    assert "another process" in refused.stderr


def test_a_damaged_checkpoint_is_named_and_the_run_still_ends_the_same(invoke: Command, tmp_path: Path):
    settings = ("method=pufferfish", *SMALL)
    invoke(*settings, "run_dir=whole")
    invoke(*settings, "run_dir=run")
    record = read_json(tmp_path / "run" / RUN)
    del record["finished"], record["summary"]  # as if it had been killed at its very end
    (tmp_path / "run" / RUN).write_text(json.dumps(record))
    newest = sorted((tmp_path / "run" / "checkpoints").glob("*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    finished = invoke(*settings, "run_dir=run")
    assert finished.returncode == 0
    assert newest.name in finished.stderr
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model=alexnet",), ["alexnet", "resnet18", "vgg11", "vgg19", "vgg19_lth"]),
        (("method=magic",), ["magic", "vanilla", "pufferfish"]),
        (("dataset=mnist",), ["mnist", "cifar10", "synthetic_images"]),
        (("profile=fast",), ["fast", "paper", "cpu", "smoke"]),
        (("precision=fp8",), ["fp8", "fp32", "amp"]),
        (("epoch=3",), ["epoch"]),
        (("epochs=three",), ["three", "epochs"]),
        (("epochs=0",), ["epochs=0"]),
        (("batch_size=0",), ["batch_size=0"]),
        (("seed=-1",), ["seed=-1"]),
        (("checkpoint_every=0",), ["checkpoint_every=0"]),
        (("rank_timeout=0",), ["rank_timeout=0.0 must be above 0"]),
        (("rank_timeout=nan",), ["rank_timeout=nan must be above 0"]),
        (("rank_warning=-1",), ["rank_warning=-1.0 must be from 0"]),
        (("device=tpu",), ["device=tpu", "cpu", "cuda"]),
        (("model.width=wide",), ["wide"]),
        (("model.hight=2",), ["hight"]),
        (("model.width=0",), ["model.width=0"]),
        (("channels_last=true",), ["channels_last", "layer2.0.shortcut.conv", "model.width"]),
        (("schedule.learning_rate=fast",), ["schedule"]),
        (("schedule.learning_rate=-0.1",), ["schedule"]),
        (("optimizer.momentum=heavy",), ["optimizer"]),
        (("optimizer.momentum=-1",), ["optimizer", "momentum"]),
        (("optimizer.nesterov=true", "optimizer.momentum=0"), ["optimizer", "Nesterov"]),
        (("dataset.test_batch_size=0",), ["dataset.test_batch_size=0"]),
        (("dataset.train_images=0",), ["dataset.train_images=0"]),
        (("seed=20261116024707",), ["seed=20261116024707"]),
        (("method=hybrid", "method.momentum=carry"), ["carry", "random"]),
        (("method=pufferfish", "model.low_rank.ranks={layer2.0.conv1: 1.5}"), ["1.5", "layer2.0.conv1"]),
        (("method=pufferfish", "model.low_rank.ranks={linear: 2}"), ["linear"]),
        (("method=pufferfish", "model.low_rank.keep=['*']", "model.low_rank.first=null"), ["no layer"]),
        (("method=pufferfish", "method.warmup_epochs=some"), ["method"]),
        (("method=pufferfish", "model.low_rank.rank_ratio=quarter"), ["rank_ratio=quarter"]),
        (("method=pufferfish", "warmup_epochs=4"), ["warmup_epochs=4", "epochs=4"]),
        (("method=pufferfish", "method.start=frozen"), ["frozen", "svd", "random"]),
        (("method=pufferfish", "method.momentum=keep"), ["keep", "fresh", "carry"]),
        (("method=pufferfish", "method.momentum=carry", "optimizer=adam"), ["carry", "SGD", "Adam"]),
        (("method=pufferfish", "model.low_rank.rank_ratio=0"), ["rank_ratio=0", "(0, 1]"]),
        (("method=pufferfish", "model.low_rank.rank_ratio=1.2"), ["rank_ratio=1.2"]),
        (("method=pufferfish", "model.low_rank.first=layer9"), ["layer9", "layer1.0.conv1"]),
        (("schedule.learning_rate=1e30",), ["not finite", "step", "learning_rate"]),
    ],
)
def test_bad_input_gets_a_sentence_and_code_2(invoke: Command, tmp_path: Path, overrides: tuple[str, ...], words: list[str]):
    refused = invoke(*QUICK, *overrides)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.stderr
    for word in words:
        assert word in refused.stderr
    if "not finite" not in words:
        assert list(tmp_path.iterdir()) == []  # a refused command leaves no litter


def test_bad_input_in_a_process_of_its_own_and_the_traceback_for_those_who_ask(command: Command):
    refused = command(*QUICK, "epochs=0")
    assert refused.returncode == 2
    assert refused.stderr == "error: epochs=0 must be at least 1\n"
    assert "Traceback" in command(*QUICK, "epochs=0", environment={"PUFFERFISH_TRACEBACK": "1"}).stderr


def test_a_full_disk_gets_a_sentence(invoke: Command, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to("/dev/null")
    (tmp_path / "run" / (RUN + ".part")).symlink_to("/dev/full")
    refused = invoke(*QUICK)
    assert refused.returncode == 2
    assert "the disk is full" in refused.stderr


@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"], ["model=nonsense"]])
def test_help_config_and_mistakes_do_not_wait_for_torch(flags: list[str], tmp_path: Path):
    program = (
        "import sys\nfrom pufferfish_bench.main import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\nfinally:\n    sys.exit('torch' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", program, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout or finished.stderr


def test_a_terminal_shows_progress_and_a_pipe_does_not(invoke: Command, arguments, tmp_path: Path):
    assert "\x1b" not in invoke(*QUICK, "run_dir=piped").stdout
    leader, follower = pty.openpty()
    words, environment = arguments(*SMALL, "run_dir=shown"), os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(words, cwd=tmp_path, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            shown += os.read(leader, 65536)
        except OSError:  # the other end is closed: the process has ended
            break
    assert process.wait() == 0
    for words in (b"steps/s", b"loss", b"/100"):
        assert words in shown


def test_missing_data_gets_a_sentence(invoke: Command, tmp_path: Path):
    refused = invoke("dataset=cifar10", "data_root=nowhere")
    assert refused.returncode == 2
    for words in ("nowhere", "data_batch_1", "download=true", "dataset=synthetic_images"):
        assert words in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_data_variable_is_none(invoke: Command, monkeypatch: pytest.MonkeyPatch):
    without = invoke("dataset=cifar10").stderr
    monkeypatch.setenv("PUFFERFISH_DATA", "")
    assert invoke("dataset=cifar10").stderr == without
    assert "data/cifar-10-batches-py" in without


def test_a_loss_that_diverges_in_the_last_step_of_an_epoch_spoils_neither_record_nor_checkpoint(invoke: Command, tmp_path: Path):
    one_step = ("batch_size=400", "schedule.learning_rate=1e30")
    refused = invoke(*SMALL, *one_step, "run_dir=run")
    assert refused.returncode == 2
    assert "step 1 of epoch 1" in refused.stderr
    assert read_rows(tmp_path / "run" / EPOCHS) == []
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_amp_trains_like_full_precision_through_the_switch_and_resumes(
    command: Command, invoke: Command, arguments, tmp_path: Path
):
    settings = ("method=pufferfish", *SMALL, "dataset.train_images=160", "schedule.learning_rate=0.02")  # bfloat16 may be slow
    assert invoke(*settings, "run_dir=full").returncode == 0
    assert command(*settings, "precision=amp", "run_dir=whole").returncode == 0
    words = arguments(*settings, "precision=amp", "run_dir=stopped")
    interrupt(words, tmp_path, signal.SIGTERM, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 1)
    assert command(*settings, "precision=amp", "run_dir=stopped").returncode == 0
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    full, mixed = ([row["loss"] for row in read_rows(tmp_path / name / EPOCHS)] for name in ("full", "whole"))
    assert mixed == pytest.approx(full, rel=0.05)
    assert mixed != full  # bfloat16 was really used
    assert all(tensor.dtype != torch.bfloat16 for tensor in final_state(tmp_path / "whole")["model"].values())


def test_channels_last_trains_through_the_switch(invoke: Command, tmp_path: Path):
    told = invoke("method=pufferfish", "profile=smoke", *DATA, "epochs=2", "channels_last=true", "run_dir=run")
    assert told.returncode == 0, told.stderr
    weights = final_state(tmp_path / "run")["model"]
    for name in ("layer1.0.conv1.weight", "layer1.1.conv1.u.weight"):
        assert weights[name].is_contiguous(memory_format=torch.channels_last)


def test_an_explicit_rank_can_be_given_by_layer_name(invoke: Command, tmp_path: Path):
    assert invoke("method=pufferfish", *QUICK, "epochs=2", "model.low_rank.ranks={layer4.1.conv2: 5}").returncode == 0
    assert read_json(tmp_path / "run" / RUN)["operations"][0]["layers"]["layer4.1.conv2"]["rank"] == 5


def test_a_sweep_makes_one_run_each(invoke: Command, tmp_path: Path):
    finished = invoke("--multirun", *SMALL, "epochs=1", "seed=1,2")
    assert finished.returncode == 0, finished.stderr
    assert len(list((tmp_path / "results" / "runs").glob("*/run.json"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_runs_are_compared_in_a_table(invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture):
    for method in ("vanilla", "pufferfish"):
        invoke(f"method={method}", *SMALL, f"run_dir=runs/{method}")
    compare.main(["runs/vanilla", "runs/pufferfish"])
    table = capsys.readouterr().out
    for method in ("vanilla", "pufferfish"):
        summary = read_json(tmp_path / "runs" / method / RUN)["summary"]
        assert f"{summary['parameters']:,}" in table
        assert f"files: runs/{method}" in table
    times = [in_all(*load(tmp_path / "runs" / method)) for method in ("vanilla", "pufferfish")]
    assert ("1.00x" in table, f"{times[0] / times[1]:.2f}x" in table) == (True, True)  # times as fast


def test_an_unfinished_first_run_is_no_measure_of_the_others(invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture):
    invoke(*QUICK)
    record = read_json(tmp_path / "run" / RUN)
    del record["summary"]
    (tmp_path / "begun").mkdir()
    write_json(tmp_path / "begun" / RUN, record)
    capsys.readouterr()
    compare.main(["begun", "run"])
    table = capsys.readouterr().out
    assert "not finished" in table
    assert "1.00x" not in table


def test_what_cannot_be_compared_gets_a_sentence_and_code_2(tmp_path: Path, refused: Callable):
    runs = {name: write_record(tmp_path / name) for name in ("cut", "torn", "without_rows", "other", "list")}
    (runs["cut"] / RUN).write_text("{")
    (runs["torn"] / EPOCHS).write_text('{"phase": "tr\n')
    (runs["without_rows"] / EPOCHS).unlink()
    (runs["other"] / RUN).write_text('{"settings": {}, "counted": {"parameters": 1}}')
    (runs["list"] / RUN).write_text("[]")
    for run, sentence in {
        tmp_path / "nowhere": "there is no run in",
        tmp_path: "there is no run in",
        runs["cut"]: "cannot be read",
        runs["torn"]: "cannot be read",
        runs["without_rows"]: "epochs.jsonl is missing",
        runs["other"]: "not that of a training run",
        runs["list"]: "holds no JSON object",
    }.items():
        refused(compare.main, [run], sentence)
