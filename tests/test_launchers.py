"""The launchers under scripts/: the words with which they start torchrun. Slurm and torchrun are stand-ins here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PATIENCE = ["--shutdown-timeout", "110"]  # seconds to finish a step and write a checkpoint
SETTINGS = ("model=resnet18", "schedule.milestones=[5, 7]")  # a space that must survive
STAND_INS = {
    "torchrun": 'printf "%s\\n" "$@"',
    "srun": '"$@"',
    "scontrol": 'test "$*" = "show hostnames gpu[3-4]"; printf "gpu3\\ngpu4\\n"',
}


@pytest.fixture
def launch(tmp_path: Path):
    """Run a launcher in a repository that has no .venv and give the words torchrun got."""
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


def test_several_machines_meet_at_the_first(launch):
    words = launch("torchrun.sh", NODES="4", NODE="1", MASTER="first").stdout.splitlines()
    assert words[:10] == [*PATIENCE, "--nnodes", "4", "--node-rank", "1", "--master-addr", "first", "--master-port", "29500"]
    assert words[10:] == ["--nproc-per-node", "auto", "-m", "pufferfish_bench", *SETTINGS]


@pytest.mark.parametrize("missing", ["NODE", "MASTER"])
def test_several_machines_without_a_number_or_address_are_refused(launch, missing: str):
    environment = {"NODES": "4", "NODE": "1", "MASTER": "first"}
    del environment[missing]
    finished = launch("torchrun.sh", **environment)
    assert finished.returncode != 0
    assert f"{missing}: is the" in finished.stderr
    assert finished.stdout == ""


def test_slurm_nodes_meet_at_the_first_of_the_job(launch, tmp_path: Path):
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
