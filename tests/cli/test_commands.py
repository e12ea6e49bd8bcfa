"""The commands as a user runs them: real processes, real signals, real files."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from pufferfish_bench.cli import compare, warmup
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows, write_json
from pufferfish_bench.records.record import Record
from pufferfish_bench.report import describe
from pufferfish_bench.training import checkpoints
from tests.support.commands import DATA, QUICK, SMALL, SMALL_TEXT, Command, assert_same_run, final_state, interrupt
from tests.support.records import write_record
from tests.support.repository import MODELS, REPOSITORY

SHORTER = {"eb_train": ("method.masks=2",), "lth": ("method.levels=1",)}  # these would otherwise be slow or warn
METHODS = sorted(path.stem for path in (REPOSITORY / "conf" / "method").glob("*.yaml"))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_synthetic_data_and_writes_its_files(invoke: Command, tmp_path: Path, method: str):
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
def test_every_image_model_can_be_pruned(invoke: Command, tmp_path: Path, model: str, method: str):
    tiny = ("dataset.train_images=48", "dataset.test_images=10", "epochs=3", "model.net.width=0.1")
    finished = invoke(f"model={model}", f"method={method}", *QUICK, *tiny, *SHORTER[method])
    assert finished.returncode == 0, finished.stderr
    first, *_, last = read_rows(tmp_path / "run" / EPOCHS)
    size = "nonzero_parameters" if method == "lth" else "parameters"
    assert last[size] < first[size]


@pytest.mark.parametrize("trigger", sorted(path.stem for path in (REPOSITORY / "conf" / "method" / "trigger").glob("*.yaml")))
def test_pufferfish_runs_with_every_trigger_and_its_record_says_when_each_would_have_fired(
    invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, trigger: str
):
    monkeypatch.setenv("COLUMNS", "200")  # so that no line is wrapped
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


def test_the_methods_warmup_epochs_set_the_epoch_of_its_trigger(invoke: Command, tmp_path: Path):
    assert invoke("method=pufferfish", *QUICK, "method.warmup_epochs=2").returncode == 0
    assert [row["phase"] for row in read_rows(tmp_path / "run" / EPOCHS)] == ["warmup"] * 2 + ["low_rank"] * 2


@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs_with_pufferfish(invoke: Command, tmp_path: Path, model: str):
    small = SMALL_TEXT.get(model.split("_")[0], SMALL)
    finished = invoke(f"model={model}", "method=pufferfish", *small, "run_dir=run", "epochs=2", "warmup_epochs=1")
    assert finished.returncode == 0, finished.stderr
    operation = read_json(tmp_path / "run" / RUN)["operations"][0]
    assert operation["layers"]
    assert all(0 < layer["energy"] <= 1 + 1e-6 for layer in operation["layers"].values())
    assert [row["phase"] for row in read_rows(tmp_path / "run" / EPOCHS)] == ["warmup", "low_rank"]


@pytest.mark.parametrize("rows_written", [0, 1, 3])  # in the warm-up, after the switch, at the end
def test_a_killed_run_resumes_to_the_same_end(invoke: Command, arguments, tmp_path: Path, rows_written: int):
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_leaves_a_checkpoint_and_a_resume_completes_the_run(invoke: Command, arguments, tmp_path: Path, number: int):
    settings = ("method=pufferfish", *SMALL, "checkpoint_every=4")
    assert invoke(*settings, "run_dir=whole").returncode == 0
    words = arguments(*settings, "run_dir=stopped")
    stopped = interrupt(words, tmp_path, number, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 1)
    assert stopped.returncode == 128 + number
    assert "Traceback" not in stopped.stderr
    assert "the same command resumes" in stopped.stdout
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


def test_the_run_directory_depends_on_the_settings_and_not_on_paths(invoke: Command, tmp_path: Path):
    elsewhere = (
        "checkpoint_every=2",
        "rank_timeout=60",
        "rank_warning=5",
        "schedule.batch=7",
        "device=cpu",
        "data_root=elsewhere",
        "tracker=none",
    )
    names = []
    for overrides in ((), elsewhere, ("seed=2",), ("schedule.learning_rate=0.2",)):
        printed = invoke(*SMALL, *overrides, "epochs=1").stdout
        names.append(printed.splitlines()[0].split("->")[1].strip())
    assert names[0] == names[1]
    assert len(set(names)) == 3
    for name in names:
        assert name.startswith("results/runs/resnet18-synthetic_images-vanilla-smoke-seed")
        assert (tmp_path / name / RUN).exists()


def test_the_location_and_source_of_the_data_are_outside_the_identity_of_a_run(invoke: Command):
    places = ("data_root=nowhere", "data_root=elsewhere", "dataset.source.mirrors=[http://127.0.0.1:9/x]")
    headers = {invoke("dataset=cifar10", "data_root=nowhere", place).stdout.splitlines()[0] for place in places}
    assert len(headers) == 1
    assert invoke("dataset=cifar10", "data_root=nowhere", "dataset.train_images=9").stdout.splitlines()[0] not in headers


def test_a_directory_with_other_settings_is_refused_with_the_difference(invoke: Command):
    invoke(*QUICK, "epochs=1")
    refused = invoke(*QUICK, "epochs=2", "schedule.learning_rate=0.2")
    assert refused.returncode == 2
    assert "epochs: 1 -> 2" in refused.stderr
    assert "schedule.learning_rate: 0.1 -> 0.2" in refused.stderr


def test_two_processes_cannot_write_the_same_run(invoke: Command, arguments, tmp_path: Path):
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
    del record["finished"], record["summary"]  # as if it had been killed just before its end
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
        (("model.net.width=wide",), ["wide"]),
        (("model.hight=2",), ["hight"]),
        (("model.net.width=0",), ["model.net.width=0"]),
        (("channels_last=sometimes",), ["channels_last=sometimes: auto, true or false"]),
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
def test_bad_input_is_refused_with_a_clear_message_and_code_2(
    invoke: Command, tmp_path: Path, overrides: tuple[str, ...], words: list[str]
):
    refused = invoke(*QUICK, *overrides)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.stderr
    for word in words:
        assert word in refused.stderr
    if "not finite" not in words:
        assert list(tmp_path.iterdir()) == []  # a refused command leaves no files


def test_bad_input_in_a_real_process_gives_one_line_and_a_traceback_only_on_request(command: Command):
    refused = command(*QUICK, "epochs=0")
    assert refused.returncode == 2
    assert refused.stderr == "error: epochs=0 must be at least 1\n"
    assert "Traceback" in command(*QUICK, "epochs=0", environment={"PUFFERFISH_TRACEBACK": "1"}).stderr


def test_a_full_disk_is_reported_with_a_clear_message(invoke: Command, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to("/dev/null")
    (tmp_path / "run" / (RUN + ".part")).symlink_to("/dev/full")
    refused = invoke(*QUICK)
    assert refused.returncode == 2
    assert "the disk is full" in refused.stderr


@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"], ["model=nonsense"]])
def test_help_config_and_mistakes_do_not_wait_for_torch(flags: list[str], tmp_path: Path):
    program = (
        "import sys\nfrom pufferfish_bench.cli.run import run\n"
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


def test_missing_data_is_reported_with_a_clear_message(invoke: Command, tmp_path: Path):
    refused = invoke("dataset=cifar10", "data_root=nowhere")
    assert refused.returncode == 2
    for words in ("nowhere", "data_batch_1", "download=true", "dataset=synthetic_images"):
        assert words in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_data_variable_counts_as_unset(invoke: Command, monkeypatch: pytest.MonkeyPatch):
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


def test_amp_trains_like_full_precision_through_the_switch_and_resumes(invoke: Command, arguments, tmp_path: Path):
    settings = ("method=pufferfish", *SMALL, "dataset.train_images=160", "schedule.learning_rate=0.02")  # bfloat16 may be slow
    assert invoke(*settings, "run_dir=full").returncode == 0
    assert invoke(*settings, "precision=amp", "run_dir=whole").returncode == 0
    words = arguments(*settings, "precision=amp", "run_dir=stopped")
    interrupt(words, tmp_path, signal.SIGTERM, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 1)
    assert invoke(*settings, "precision=amp", "run_dir=stopped").returncode == 0
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    full, mixed = ([row["loss"] for row in read_rows(tmp_path / name / EPOCHS)] for name in ("full", "whole"))
    assert mixed == pytest.approx(full, rel=0.05)
    assert mixed != full  # bfloat16 was actually used
    assert all(tensor.dtype != torch.bfloat16 for tensor in final_state(tmp_path / "whole")["model"].values())


def test_by_default_convolutions_are_channels_last_before_and_after_the_switch(invoke: Command, tmp_path: Path):
    finished = invoke("method=pufferfish", "profile=smoke", *DATA, "epochs=2", "run_dir=run")
    assert finished.returncode == 0, finished.stderr
    weights = final_state(tmp_path / "run")["model"]
    for name in ("layer1.0.conv1.weight", "layer1.1.conv1.u.weight"):
        assert weights[name].is_contiguous(memory_format=torch.channels_last)


def test_an_explicit_rank_can_be_given_by_layer_name(invoke: Command, tmp_path: Path):
    assert invoke("method=pufferfish", *QUICK, "epochs=2", "model.low_rank.ranks={layer4.1.conv2: 5}").returncode == 0
    assert read_json(tmp_path / "run" / RUN)["operations"][0]["layers"]["layer4.1.conv2"]["rank"] == 5


def test_a_sweep_makes_one_run_for_each_value(invoke: Command, tmp_path: Path):
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
    times = [Record.read(tmp_path / "runs" / method).total_seconds for method in ("vanilla", "pufferfish")]
    assert ("1.00x" in table, f"{times[0] / times[1]:.2f}x" in table) == (True, True)  # the speed-up


def test_an_unfinished_first_run_is_not_used_as_the_baseline(invoke: Command, tmp_path: Path, capsys: pytest.CaptureFixture):
    invoke(*QUICK)
    record = read_json(tmp_path / "run" / RUN)
    del record["summary"]
    (tmp_path / "begun").mkdir()
    write_json(tmp_path / "begun" / RUN, record)
    capsys.readouterr()
    compare.main(["begun", "run"])
    table = " ".join(capsys.readouterr().out.split())
    assert "begun (not finished: 0 of 4 epochs)" in table
    assert table.count("1.00x") == 1


def test_runs_that_cannot_be_compared_are_refused_with_a_clear_message_and_code_2(tmp_path: Path, refused: Callable):
    runs = {name: write_record(tmp_path / name) for name in ("cut", "torn", "without_rows", "other", "list")}
    (runs["cut"] / RUN).write_text("{")
    (runs["torn"] / EPOCHS).write_text('{"phase": "tr\n')
    (runs["without_rows"] / EPOCHS).unlink()
    (runs["other"] / RUN).write_text('{"format": 2, "settings": {}, "counted": {"parameters": 1}}')
    (runs["list"] / RUN).write_text("[]")
    for run, sentence in {
        tmp_path / "nowhere": "there is no run in",
        runs["cut"]: "cannot be read",
        runs["torn"]: "cannot be read",
        runs["without_rows"]: "epochs.jsonl is missing",
        runs["other"]: "not that of a training run",
        runs["list"]: "is not a JSON object",
    }.items():
        refused(compare.main, [run], sentence)


def test_a_run_in_an_older_format_is_refused_with_a_clear_message(invoke: Command, tmp_path: Path):
    """The format is checked in the record, and in the checkpoint where the record is missing."""
    assert invoke(*QUICK).returncode == 0
    record = read_json(tmp_path / "run" / RUN)
    del record["format"]
    write_json(tmp_path / "run" / RUN, record)
    refused = invoke(*QUICK)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "run.json was written by pufferfish-bench 0.1" in refused.stderr
    (tmp_path / "run" / RUN).unlink()
    for path in (tmp_path / "run" / "checkpoints").glob("*.pt"):
        state = checkpoints.read(path)
        del state["format"]
        checkpoints.write(path, state)
    refused = invoke(*QUICK)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert ".pt was written by pufferfish-bench 0.1" in refused.stderr


def test_a_probe_writes_its_file_and_nothing_else(invoke: Command, tmp_path: Path):
    probed = invoke(*QUICK, "probe_steps=2", "probe_file=pace.json")
    assert probed.returncode == 0, probed.stderr
    assert read_json(tmp_path / "pace.json")["seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["pace.json"]
