"""The launchers in scripts/: the arguments they pass to torchrun, with fake Slurm and torchrun; then runs with a real torchrun,
and with two simulated Slurm nodes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pufferfish_bench.paper import cluster, nodes
from pufferfish_bench.paper.nodes import port
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from tests.support.repository import REPOSITORY
from tests.support.slurm import SCONTROL, SRUN, install

# seconds to finish a step and write a checkpoint, and the signals that torchrun passes on to the ranks
PATIENCE = ["--shutdown-timeout", str(nodes.PATIENCE), "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
SETTINGS = ("model=resnet18", "schedule.milestones=[5, 7]")  # the space must be preserved
STAND_INS = {
    "torchrun": 'printf "%s\\n" "$@"',
    "srun": '"$@"',
    "scontrol": 'test "$*" = "show hostnames gpu[3-4]"; printf "gpu3\\ngpu4\\n"',
}


@pytest.fixture
def launch(tmp_path: Path):
    """Run a launcher in a repository without .venv; it prints the arguments of torchrun."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/sh\nset -e\n{body}\n")
        (tools / name).chmod(0o755)
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")

    def run(script: str, **environment: str) -> subprocess.CompletedProcess:
        words = ["bash", str(tmp_path / "scripts" / script), *SETTINGS]
        path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(words, cwd=tmp_path, env=path | environment, capture_output=True, text=True)

    return run


def test_one_machine_needs_no_address(launch):
    words = launch("torchrun.sh", PROCESSES="2").stdout.splitlines()
    how = ["--max-restarts", "0", "--standalone", "--nproc-per-node", "2"]
    assert words == [*PATIENCE, *how, "-m", "pufferfish_bench", *SETTINGS]


def test_several_machines_rendezvous_at_one_of_them(launch):
    words = launch("torchrun.sh", NODES="4", MASTER="first", RESTARTS="2").stdout.splitlines()
    meeting = ["--nnodes", "4", "--rdzv-id", "pufferfish", "--rdzv-backend", "c10d", "--rdzv-endpoint", "first:29500"]
    assert words == [
        *PATIENCE, "--max-restarts", "2", *meeting, "--nproc-per-node", "auto", "-m", "pufferfish_bench", *SETTINGS
    ]  # fmt: skip


def test_several_machines_without_an_address_are_refused(launch):
    finished = launch("torchrun.sh", NODES="4")
    assert finished.returncode != 0
    assert "MASTER: set MASTER to the address of one of the machines" in finished.stderr
    assert finished.stdout == ""


def test_slurm_nodes_rendezvous_at_the_first_node_of_the_job(launch, tmp_path: Path):
    job = {
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "gpu[3-4]",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    words = launch("slurm.sh", PROCESSES="8", **job).stdout.splitlines()
    assert port(123456) == 23456
    assert words == [
        *PATIENCE, "--max-restarts", "3", "--nnodes", "2", "--nproc-per-node", "8",
        "--rdzv-id", "123456", "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu3:23456", "-m", "pufferfish_bench", *SETTINGS,
    ]  # fmt: skip


def test_the_script_of_slurm_passes_the_cores_of_a_task_on_to_srun(launch, tmp_path: Path):
    (tmp_path / "tools" / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[3-4]", "SLURM_SUBMIT_DIR": str(tmp_path)}
    assert launch("slurm.sh", **job, SLURM_CPUS_PER_TASK="8").stdout.splitlines()[:2] == ["--cpus-per-task=8", "torchrun"]
    assert launch("slurm.sh", **job).stdout.splitlines()[0] == "torchrun"


def test_the_script_of_slurm_recognises_a_preemption_by_the_same_words_as_the_jobs_of_tables():
    script = (REPOSITORY / "scripts" / "slurm.sh").read_text()
    assert f"=~ {cluster.PREEMPTED.pattern}" in script.replace("[0-9]", r"\d")


TINY = (
    "model=resnet18", "profile=smoke", "method=powersgd", "model.net.width=0.05", "dataset.train_images=32",
    "dataset.test_images=8", "batch_size=8", "epochs=1", "schedule.milestones=[5, 7]", "run_dir=run",
)  # fmt: skip


def start(script: str, directory: Path, tools: Path | None = None, *settings: str, **environment: str) -> subprocess.Popen:
    """Start a launcher of the repository with the torchrun of this Python environment."""
    places = [str(place) for place in (tools, Path(sys.executable).parent) if place]
    path = {"PATH": os.pathsep.join([*places, os.environ["PATH"]])}
    words = ["bash", str(REPOSITORY / "scripts" / script), *TINY, *settings]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=directory, env=os.environ | path | environment, start_new_session=True, **pipes)


def end(*processes: subprocess.Popen) -> None:
    """Wait for launchers that must succeed."""
    try:
        said = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in processes] == [0] * len(processes), said


def free_port(port: int = 0) -> int | None:
    """The given port, or any free one; None if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
        return probe.getsockname()[1]


def workers(directory: Path) -> int:
    """The number of workers of the finished run."""
    record = read_json(directory / "run" / RUN)
    assert "finished" in record
    return record["world_size"]


def test_one_machine_trains_on_two_processes(tmp_path: Path):
    end(start("torchrun.sh", tmp_path, PROCESSES="2"))
    assert workers(tmp_path) == 2


def test_two_machines_train_one_run_together(tmp_path: Path):
    together = {"NODES": "2", "MASTER": "127.0.0.1", "PORT": str(free_port()), "PROCESSES": "1"}
    end(*(start("torchrun.sh", tmp_path, **together) for _ in range(2)))
    assert workers(tmp_path) == 2


@pytest.fixture
def slurm(tmp_path: Path):
    """Start scripts/slurm.sh as a Slurm job of two nodes would, with these imitations."""
    tools = tmp_path / "tools"
    tools.mkdir()
    install(tools, {"srun": SRUN, "scontrol": SCONTROL})
    # the script derives its port from the job id
    number = next(number for number in range(os.getpid() % 9_000, 10_000) if free_port(port(number)))
    job = {
        "FAKE_SLURM": str(tmp_path),
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    return lambda *words, **more: start(
        "slurm.sh", tmp_path, tools, *words, SLURM_SUBMIT_DIR=str(tmp_path), PROCESSES="1", **job | more
    )


def reach_epoch(directory: Path, number: int, *processes: subprocess.Popen) -> None:
    rows = directory / "run" / EPOCHS
    while not rows.exists() or rows.read_text().count("\n") < number:
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        time.sleep(0.02)


LONG = ("epochs=6", "dataset.train_images=160")


def test_a_slurm_job_writes_a_checkpoint_before_its_time_limit_is_queued_again_and_continues(slurm, tmp_path: Path):
    process = slurm(*LONG)
    reach_epoch(tmp_path, 2, process)
    process.send_signal(signal.SIGUSR1)
    output, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "stopped; a checkpoint is saved" in output, errors
    assert (tmp_path / "requeued").read_text().startswith("requeue ")
    assert "finished" not in read_json(tmp_path / "run" / RUN)
    end(slurm(*LONG))  # as Slurm starts it again
    assert (tmp_path / "requeued").read_text().count("\n") == 1  # a finished job is not
    assert workers(tmp_path) == 2
    record = read_json(tmp_path / "run" / RUN)
    assert [part["epoch"] >= 2 for part in record["resumed"]] == [True]
    assert [row["epoch"] for row in read_rows(tmp_path / "run" / EPOCHS)] == list(range(6))


# in place of a run: ends at SIGUSR1 only, with the exit code $CODE
STUB = "trap 'echo x >> stopped; exit \"$CODE\"' USR1; echo x >> started; for i in $(seq 400); do sleep 0.05; done"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])  # before the time limit; on preemption
@pytest.mark.parametrize(
    ("environment", "queued_again", "said"),
    [
        ({"CODE": "1"}, True, ""),
        ({"CODE": "0"}, False, ""),  # it finished just then
        ({"CODE": "1", "FAKE_SLURM_JOB_STATE": "CANCELLED"}, False, "the job was cancelled; submit the same command to continue"),
        ({"CODE": "1", "FAKE_SLURM_REFUSED": "1"}, True, "the job cannot be queued again; submit the same command to continue"),
    ],
)
def test_a_slurm_job_that_is_signalled_stops_on_all_nodes_and_is_queued_again_unless_it_is_over(
    slurm, tmp_path: Path, number: int, environment: dict[str, str], queued_again: bool, said: str
):
    (tmp_path / "tools" / "torchrun").write_text(f"#!/bin/bash\n{STUB}\n")
    (tmp_path / "tools" / "torchrun").chmod(0o755)
    process = slurm(**environment)
    while not (tmp_path / "started").exists() or len((tmp_path / "started").read_text()) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == int(environment["CODE"])
    assert (tmp_path / "stopped").read_text() == "x\n" * 2
    assert (tmp_path / "requeued").exists() == queued_again
    assert said in errors
    assert bool(said) == bool(errors)


def test_a_slurm_job_that_fails_is_not_queued_again_and_returns_the_exit_code(slurm, tmp_path: Path):
    process = slurm("batch_size=0", RESTARTS="0")
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "batch_size=0 must be at least 1" in errors
    assert not (tmp_path / "requeued").exists()


def test_a_slurm_job_whose_ranks_alone_are_signalled_is_queued_again_if_it_was_preempted(slurm, tmp_path: Path):
    (tmp_path / "tools" / "torchrun").write_text("#!/bin/bash\nexit 1\n")  # as after a checkpoint
    (tmp_path / "tools" / "torchrun").chmod(0o755)
    assert slurm(FAKE_SLURM_PREEMPTED="2026-01-01T00:00:00").wait(60) == 1
    assert (tmp_path / "requeued").exists()


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes that torchrun started."""
    words = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    return [int(word) for word in subprocess.run(words, capture_output=True, text=True).stdout.split()]


def test_two_machines_restart_all_ranks_from_the_checkpoint_when_one_is_killed(tmp_path: Path):
    together = {"NODES": "2", "MASTER": "127.0.0.1", "PORT": str(free_port()), "PROCESSES": "1", "RESTARTS": "2"}
    machines = [start("torchrun.sh", tmp_path, None, *LONG, **together) for _ in range(2)]
    reach_epoch(tmp_path, 2, *machines)
    os.kill(ranks_of(machines[1])[0], signal.SIGKILL)
    end(*machines)
    assert workers(tmp_path) == 2
    assert [part["epoch"] >= 2 for part in read_json(tmp_path / "run" / RUN)["resumed"]] == [True]
    assert [row["epoch"] for row in read_rows(tmp_path / "run" / EPOCHS)] == list(range(6))
