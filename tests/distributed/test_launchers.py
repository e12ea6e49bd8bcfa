"""The launchers in scripts/: the arguments they pass to torchrun, with fake Slurm and torchrun; then runs with a real torchrun,
and with two simulated Slurm nodes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pufferfish_bench.records.files import RUN, read_json
from tests.support.repository import REPOSITORY

PATIENCE = ["--shutdown-timeout", "110"]  # seconds to finish a step and write a checkpoint
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
    assert words == [*PATIENCE, "--standalone", "--nproc-per-node", "2", "-m", "pufferfish_bench", *SETTINGS]


def test_several_machines_rendezvous_at_the_first(launch):
    words = launch("torchrun.sh", NODES="4", NODE="1", MASTER="first").stdout.splitlines()
    assert words[:10] == [*PATIENCE, "--nnodes", "4", "--node-rank", "1", "--master-addr", "first", "--master-port", "29500"]
    assert words[10:] == ["--nproc-per-node", "auto", "-m", "pufferfish_bench", *SETTINGS]


@pytest.mark.parametrize("missing", ["NODE", "MASTER"])
def test_several_machines_without_a_number_or_address_are_refused(launch, missing: str):
    environment = {"NODES": "4", "NODE": "1", "MASTER": "first"}
    del environment[missing]
    finished = launch("torchrun.sh", **environment)
    assert finished.returncode != 0
    assert f"{missing}: set {missing} to the" in finished.stderr
    assert finished.stdout == ""


def test_slurm_nodes_rendezvous_at_the_first_node_of_the_job(launch, tmp_path: Path):
    job = {
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "gpu[3-4]",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    words = launch("slurm.sh", PROCESSES="8", **job).stdout.splitlines()
    assert words[:6] == [*PATIENCE, "--nnodes", "2", "--nproc-per-node", "8"]
    assert words[6:12] == ["--rdzv-id", "123456", "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu3:23456"]
    assert words[12:] == ["-m", "pufferfish_bench", *SETTINGS]


TINY = (
    "model=resnet18", "profile=smoke", "method=powersgd", "model.net.width=0.05", "dataset.train_images=32",
    "dataset.test_images=8", "batch_size=8", "epochs=1", "schedule.milestones=[5, 7]", "run_dir=run",
)  # fmt: skip


def start(script: str, directory: Path, tools: Path | None = None, **environment: str) -> subprocess.Popen:
    """Start a launcher of the repository with the torchrun of this Python environment."""
    places = [str(place) for place in (tools, Path(sys.executable).parent) if place]
    path = {"PATH": os.pathsep.join([*places, os.environ["PATH"]])}
    words = ["bash", str(REPOSITORY / "scripts" / script), *TINY]
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
    end(*(start("torchrun.sh", tmp_path, NODE=node, **together) for node in ("0", "1")))
    assert workers(tmp_path) == 2


def test_two_nodes_of_a_slurm_job_train_one_run_together(tmp_path: Path):
    tools = tmp_path / "tools"
    tools.mkdir()
    nodes = '"$@" & first=$!; "$@" & wait $!; wait $first'  # srun starts its command on every node
    for name, body in {"srun": nodes, "scontrol": 'printf "127.0.0.1\\n127.0.0.1\\n"'}.items():
        (tools / name).write_text(f"#!/bin/sh\nset -e\n{body}\n")
        (tools / name).chmod(0o755)
    # the script derives its port from the job id
    number = next(number for number in range(os.getpid() % 9_000, 10_000) if free_port(20_000 + number))
    job = {"SLURM_JOB_ID": str(number), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    end(start("slurm.sh", tmp_path, tools, SLURM_SUBMIT_DIR=str(tmp_path), PROCESSES="1", **job))
    assert workers(tmp_path) == 2
