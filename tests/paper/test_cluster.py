"""Tables on a Slurm cluster: what is submitted, with fake Slurm commands that run the scripts on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from pufferfish_bench.base import cores
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import cluster, placing, tables
from pufferfish_bench.paper.jobs import Job
from pufferfish_bench.paper.launching import Watcher
from pufferfish_bench.paper.nodes import Nodes
from pufferfish_bench.paper.supervision import Stop
from pufferfish_bench.paper.work import Work, grouped
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.report.overview import Overview
from tests.support.slurm import SCONTROL, SRUN, install

SMALL = ["model=vgg11", "model.net.width=0.05", "dataset.train_images=64", "dataset.test_images=10"]
PATIENCE = 240
# Numbers count from 100. `queue` has a file for each job that waits or runs, named like the job, with its process.
SBATCH = """
import os, re, subprocess, sys
from pathlib import Path
home = Path(os.environ["FAKE_SLURM"])
script = Path(sys.argv[-1]).read_text()
number = 100 + len(list(home.glob("*.sh")))
(home / f"{number}.sh").write_text(script)
array = re.search(r"--array=0-(\\d+)", script)
nodes = int(re.search(r"--nodes=(\\d+)", script)[1])
print(f"Submitted batch job {number}")
if os.environ.get("FAKE_SLURM_HOLD"):
    tasks = []
else:
    tasks = range(int(array[1]) + 1) if array else [None]
runner = (
    "import os, subprocess, sys, time; from pathlib import Path\\n"
    "entry, script = Path(sys.argv[1]), sys.argv[2]\\n"
    "while True:\\n"
    "    (entry.parent / 'again' / entry.name).unlink(missing_ok=True)\\n"
    "    subprocess.run(['bash', script])\\n"
    "    if not (entry.parent / 'again' / entry.name).exists(): break\\n"
    "entry.unlink()\\n"
)
(home / "queue" / "again").mkdir(parents=True, exist_ok=True)
for task in tasks:
    name = str(number) if task is None else f"{number}_{task}"
    entry = home / "queue" / name
    own = {"SLURM_JOB_ID": str(number), "SLURM_JOB_NUM_NODES": str(nodes), "FAKE_SLURM_ENTRY": str(entry)}
    if task is not None:
        own |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task)}
    (home / "queue" / name).touch()
    with (home / f"{name}.log").open("w") as log:
        words = [sys.executable, "-c", runner, str(entry), str(home / f"{number}.sh")]
        subprocess.Popen(words, env=os.environ | own, stdout=log, stderr=log, start_new_session=True)
"""
SQUEUE = """
import os
from pathlib import Path
queue = Path(os.environ["FAKE_SLURM"]) / "queue"
state = os.environ.get("FAKE_SLURM_STATE", "RUNNING")
print("\\n".join(f"{path.name} {state}" for path in queue.glob("*") if path.is_file()))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Slurm's commands, an empty working directory, no data and no GPU; the directory of the fake cluster."""
    tools, home = tmp_path / "tools", tmp_path / "slurm"
    for folder in (tools, home, tmp_path / "conf" / "table"):
        folder.mkdir(parents=True)
    install(tools, {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE, "scontrol": SCONTROL, "sacct": ""})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("PUFFERFISH_CONF", "conf")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("FAKE_SLURM", str(home))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.5)
    return home


class Seen(Watcher):
    """Remembers the runs that are shown as started, and calls `then` after the first look."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then, self.started_names = then, []

    def started(self, work: Work, slots: tuple[str, ...]) -> None:
        self.started_names.append(work.name)

    def tick(self) -> None:
        self.then()


def write(seeds: int = 1, workers: int = 1, figures: tuple[str, ...] = ("test_accuracy",), **cells: list[str]) -> list[Job]:
    content: dict[str, Any] = {"title": "", "seeds": seeds, "workers": workers, "figures": dict.fromkeys(figures)}
    content["cells"] = {cell: {"overrides": words} for cell, words in cells.items()}
    OmegaConf.save(OmegaConf.create(content), Path("conf/table/mine.yaml"))
    return tables.read("mine", "smoke").jobs(seeds, Path("results/records"))


def reproduce(*words: str) -> int:
    from pufferfish_bench.cli import reproduce as command

    return command.main(["mine", "--profile", "smoke", "--launcher", "slurm", *words])


def wait_for(ready) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def flags(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --").partition("=") for line in script.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in lines}


def test_the_seeds_of_a_cell_are_an_array_and_settings_reach_the_script(slurm: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_SLURM_HOLD", "1")
    jobs = write(seeds=3, one=SMALL, two=[*SMALL, "method=hybrid"])
    assert reproduce("--no-wait", "--slurm", "partition=gpu account=me timeout_min=720 mem_gb=32") == 0
    first, second = (flags((slurm / f"{number}.sh").read_text()) for number in (100, 101))
    assert first["array"] == second["array"] == "0-2%3"
    assert (first["job-name"], second["job-name"]) == ("mine-one", "mine-two")
    assert (first["partition"], first["account"], first["time"], first["mem"]) == ("gpu", "me", "720", "32GB")
    assert (first["nodes"], first["ntasks-per-node"], first["gpus-per-node"]) == ("1", "1", "1")
    assert first["signal"].startswith("USR2@")
    assert "exclusive" not in first
    assert "--cpus-per-task" not in (slurm / "100.sh").read_text()
    assert [(job.directory / cluster.NUMBER).read_text() for job in jobs if job.cell.name == "two"] == ["101_0", "101_1", "101_2"]


def test_a_cell_that_measures_time_has_its_nodes_to_itself_and_many_workers_span_nodes(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_SLURM_HOLD", "1")
    (job,) = write(workers=16, figures=("seconds_per_epoch",), one=SMALL)
    assert reproduce("--no-wait", "--gpus-per-node", "8") == 0
    found = flags((slurm / "100.sh").read_text())
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == ("2", "1", "8")
    assert "exclusive" in found
    words = job.cell.on(Nodes(2, 1, "gpu3", 123456)).command(job)
    assert words[3:9] == ["--shutdown-timeout", "110", "--nnodes", "2", "--rdzv-id", "123456"]
    assert words[words.index("--rdzv-endpoint") + 1] == "gpu3:23456"
    assert words[words.index("--nproc-per-node") + 1] == "8"


def test_jobs_are_submitted_once_and_their_records_are_collected_by_the_same_command(slurm: Path):
    jobs = write(one=[*SMALL, "epochs=2"], two=[*SMALL, "method=hybrid", "epochs=2"])
    assert reproduce("--no-wait") == 0
    assert reproduce() == 0  # waits for both
    assert len(list(slurm.glob("*.sh"))) == 2
    assert all(job.done for job in jobs)
    assert all((job.directory / "output.log").exists() for job in jobs)


def test_a_job_that_reaches_its_time_limit_is_queued_again_and_continues(slurm: Path):
    (job,) = write(one=[*SMALL, "dataset.train_images=400", "epochs=30"])
    assert reproduce("--no-wait") == 0
    wait_for(lambda: len(read_rows(job.directory / EPOCHS)) > 1)
    entry = slurm / "queue" / (job.directory / cluster.NUMBER).read_text()
    os.kill(int(entry.read_text()), signal.SIGUSR2)  # as Slurm does before the end
    assert reproduce() == 0
    assert [row["epoch"] for row in read_rows(job.record / EPOCHS)] == list(range(30))
    assert len(read_json(job.record / RUN)["resumed"]) == 1


def test_a_job_that_is_preempted_by_a_signal_to_its_process_is_queued_again(slurm: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_SLURM_PREEMPTED", "2026-01-01T00:00:00")
    (job,) = write(one=[*SMALL, "dataset.train_images=400", "epochs=30"])
    assert reproduce("--no-wait") == 0
    wait_for(lambda: len(read_rows(job.directory / EPOCHS)) > 1)
    entry = slurm / "queue" / (job.directory / cluster.NUMBER).read_text()
    process = int(entry.read_text())
    os.kill(process, signal.SIGTERM)
    wait_for(lambda: (slurm / "queue" / "again" / entry.name).exists())  # then Slurm ends it
    os.kill(process, signal.SIGKILL)
    assert reproduce() == 0
    assert len(read_json(job.record / RUN)["resumed"]) == 1


def test_a_run_that_is_refused_is_reported_and_fails(slurm: Path, capsys: pytest.CaptureFixture):
    refused, fine = write(one=[*SMALL, "epochs=1"], two=[*SMALL, "method=hybrid", "epochs=1"])
    refused.directory.mkdir(parents=True)
    (refused.directory / RUN).write_text("{}")
    assert reproduce() == 1
    said = capsys.readouterr().err
    assert f"mine/one/seed1: {refused.directory}" in said or f"mine/one/seed1: the record in {refused.directory}" in said
    assert "failed: mine/one/seed1; run the same command to try again" in said
    assert fine.done


def test_a_job_that_waits_in_the_queue_is_not_shown_as_running(slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("FAKE_SLURM_HOLD", "1")
    (job,) = write(one=SMALL)
    assert reproduce("--no-wait") == 0
    assert "submitted: mine/one/seed1, Slurm job 100" in capsys.readouterr().out
    (slurm / "queue" / (job.directory / cluster.NUMBER).read_text()).touch()
    for state, started in (("PENDING", []), ("RUNNING", ["mine/one/seed1"])):
        monkeypatch.setenv("FAKE_SLURM_STATE", state)
        seen = Seen(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Stop):
            cluster.run_all(grouped([job]), cluster.parse(""), 8, seen, wait=True)
        assert seen.started_names == started


def test_a_job_that_fails_is_reported_with_its_log(slurm: Path, capsys: pytest.CaptureFixture):
    (job,) = write(one=[*SMALL, "epochs=0"])
    assert reproduce() == 1
    said = capsys.readouterr().err
    assert f"mine/one/seed1 failed; {job.directory / 'output.log'} ends with" in said
    assert "error: epochs=0 must be" in said


@pytest.mark.xdist_group("workers")
def test_two_nodes_train_one_run(slurm: Path):
    (job,) = write(workers=2, one=[*SMALL, "epochs=1"])
    assert reproduce("--gpus-per-node", "1") == 0
    assert flags((slurm / "100.sh").read_text())["nodes"] == "2"
    assert read_json(job.record / RUN)["world_size"] == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("partition", "KEY=VALUE is expected"),
        ("nodes=3", "nodes is set by the run itself"),
        ("colour=red", "Unknown argument 'colour'"),
    ],
)
def test_settings_that_slurm_does_not_have_are_refused(slurm: Path, words: str, reason: str):
    write(one=SMALL)
    with pytest.raises(InputError, match=reason):
        reproduce("--slurm", words)
    assert not list(slurm.glob("*.sh"))


def test_a_machine_without_slurm_is_refused(slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    write(one=SMALL)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="start this on a Slurm cluster"):
        reproduce()


def test_seeds_and_cells_are_arrays_of_their_own(slurm: Path):
    works = grouped(write(seeds=2, one=SMALL, two=[*SMALL, "method=hybrid"]))
    assert [[work.name for work in array] for array in cluster.arrays(works)] == [
        ["mine/one/seed1", "mine/one/seed2"], ["mine/two/seed1", "mine/two/seed2"],
    ]  # fmt: skip


def test_the_cores_of_a_run_are_given_to_srun_too(slurm: Path, monkeypatch: pytest.MonkeyPatch):
    """Slurm 22.05 to 23.11 does not pass them on."""
    monkeypatch.setenv("FAKE_SLURM_HOLD", "1")
    write(one=SMALL)
    assert reproduce("--no-wait", "--slurm", "cpus_per_task=8 srun_args='--mpi none'") == 0
    script = (slurm / "100.sh").read_text()
    assert flags(script)["cpus-per-task"] == "8"
    (srun,) = (line.split() for line in script.splitlines() if line.startswith("srun "))
    assert srun[srun.index("--mpi") :][:3] == ["--mpi", "none", "--cpus-per-task=8"]


def test_a_run_uses_the_cores_of_its_task_on_a_cluster_that_does_not_bind_it_to_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.delenv(cores.SHARE, raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert cores.cores() == 64
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert cores.cores() == 8
    monkeypatch.setenv(cores.SHARE, "4")
    assert cores.cores() == 4


def test_a_job_has_ended_when_two_looks_at_the_queue_do_not_list_it(monkeypatch: pytest.MonkeyPatch):
    failed = InputError("squeue failed")
    looks = iter(
        [{"2": "RUNNING"}, {"1": "PENDING", "2": "RUNNING"}, {"2": "RUNNING"}, failed, {"2": "RUNNING"}, {"2": "RUNNING"}]
    )

    def squeue() -> dict[str, str]:
        found = next(looks)
        if isinstance(found, InputError):
            raise found
        return found

    monkeypatch.setattr(cluster, "queued", squeue)
    queue, there = cluster.Queue({"1": "PENDING", "2": "PENDING"}), []
    for _ in range(6):
        queue.look()
        there.append("1" in queue.there)
    assert there == [True, True, True, True, False, False]  # not listed yet, listed, missing, squeue fails, missing again
    assert queue.there == {"2": "RUNNING"}


def test_runs_that_measure_time_are_not_one_after_the_other_on_a_cluster(slurm: Path):
    works = grouped(write(seeds=3, figures=("seconds_per_epoch",), one=SMALL))
    machine = placing.machine_for(works, gpus=None, jobs=None, launcher="slurm")
    shown = Overview(works, machine, {work.directory: 100.0 for work in works}, console=Console(), live=False)
    assert shown.remaining() == 100.0


def test_what_submitit_says_of_a_run_that_ends_is_not_in_its_log(slurm: Path):
    (job,) = write(one=SMALL)
    assert reproduce() == 0
    log = (job.directory / "output.log").read_text()
    assert "phase train" in log
    assert "success" not in log


@pytest.mark.parametrize(("words", "reason"), [(["--jobs", "2"], "JOBS=2 is not for"), (["--gpus", "8"], "GPUS=8 is not for")])
def test_places_of_this_machine_are_refused_where_the_cluster_decides(slurm: Path, words: list[str], reason: str):
    write(one=SMALL)
    with pytest.raises(InputError, match=reason):
        reproduce("--dry-run", *words)


def test_a_sweep_trains_as_jobs_of_slurm(slurm: Path):
    """With Hydra's own launcher, as docs/clusters.md shows it."""
    words = ["--multirun", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.timeout_min=720"]
    command = [sys.executable, "-m", "pufferfish_bench", *words, "profile=smoke", *SMALL, "epochs=1", "seed=1,2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = flags((slurm / "100.sh").read_text())
    assert (found["partition"], found["time"], found["array"]) == ("gpu", "720", "0-1%2")
    records = [read_json(path) for path in Path("results/runs").glob(f"*/{RUN}")]
    assert sorted(record["settings"]["seed"] for record in records if "finished" in record) == [1, 2]
