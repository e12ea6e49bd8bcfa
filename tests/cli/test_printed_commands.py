"""Every command that the documentation prints is run by a test, or is listed here with what it needs.

docs/commands.md and docs/extending.md have tests of their own, which run their commands in one folder each.
"""

from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY
from tests.support.shell import Shell, in_sentences, printed

OWN_TESTS = ("docs/commands.md", "docs/extending.md")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
NET = "model.net.width=0.05 "
IMAGES = "epochs=2 dataset.train_images=64 dataset.test_images=16 batch_size=8 "
PAIRS = "epochs=2 warmup_epochs=1 dataset.train_pairs=200 dataset.test_pairs=20"
ADVICE = "quick=true ratios=[0.25] batch_size=2 "
RUN = "results/runs/demo/pufferfish"  # stands for results/runs/RUN
# the settings that make a printed command small enough for a test; the commands of the README are run as they are printed
RUN_HERE = {
    "pufferfish-run model=resnet18 method=pufferfish profile=smoke": "",
    "pufferfish-compare": "",
    "pufferfish-describe model=vgg19": "",
    "pufferfish-describe model=vgg19 model.low_rank.first=features.conv12 model.low_rank.rank_ratio=0.125": "",
    "pufferfish-run model=any model.net._target_=torchvision.models.resnet34 method=pufferfish profile=smoke": "",
    "pufferfish-advise model=resnet18 network=10gbit workers=16": "",
    "pufferfish-advise model=lstm network=p3.2xlarge workers=2..1024 out=advice/lstm": (
        ADVICE + "model.net.hidden=16 dataset.vocabulary=50"
    ),
    "pufferfish-advise model=vgg19 batch_size=32 network=1gbit latency=100us workers=[2,8]": ADVICE + NET,
    "pufferfish-export run=results/runs/demo/pufferfish demo.safetensors": "",
    "pufferfish-export run=results/runs/demo/pufferfish out.safetensors": "",
    "pufferfish-export run=results/runs/demo/pufferfish --merge dense.safetensors": "",
    "pufferfish-export run=results/runs/demo/pufferfish --onnx --force out.safetensors": "",
    "torchrun --nproc-per-node 2 -m pufferfish_bench model=resnet18 method=powersgd profile=smoke": "",
    "scripts/netlab --hosts 2 --cap 100mbit -- model=resnet18 method=pufferfish profile=smoke": "",
    "make tables PROFILE=paper DRY=1 GPUS=8": "",
    "make help": "",
    "pufferfish-run --multirun hydra/launcher=submitit_local profile=smoke seed=1,2": NET + IMAGES,
    "pufferfish-run model=transformer method=pufferfish profile=smoke run_dir=results/runs/numbers": PAIRS,
    'pufferfish-translate run=results/runs/numbers "drei hundert sieben und vierzig"': "",
    "pufferfish breakdown results/runs/RUN ...": "",
    "pufferfish-run profile=smoke epochs=1 'tracker=[tensorboard,wandb,mlflow]' tracker.wandb.mode=offline": (
        NET + IMAGES + "epochs=1"
    ),
    "PUFFERFISH_TRACKER=mlflow pufferfish-run --multirun profile=smoke epochs=1 seed=2,3": NET + IMAGES + "epochs=1",
    "WANDB_MODE=offline pufferfish-run profile=smoke epochs=1 seed=4 tracker=wandb tracker.wandb.project=low-rank": (
        NET + IMAGES + "epochs=1"
    ),
}  # fmt: skip
NOT_HERE = {
    "pufferfish-whatif results/runs/RUN ...": "needs two workers: see docs/commands.md",
    "make demo": "run by tests/cli/test_demo.py",
    "make test": "runs this test",
    ".venv/bin/pytest tests/reducers": "runs tests",
    "make lint": "run by CI",
    "source .venv/bin/activate": "needs the environment of make",
    "pip install -e .": "needs the internet",
    "make report": "run by tests/paper/test_results.py: it writes into results/",
    "make table4": "needs the data",
    "make table4 PROFILE=paper": "needs a GPU and the data",
    "make table4 CELLS='*fp32' SEEDS=1": "needs the data",
    "make tables figures": "needs the data",
    "pufferfish-run model=resnet18 profile=cpu download=true probe_steps=1": "needs the internet",
    "pufferfish-run model=resnet50 method=pufferfish precision=amp": "needs the data",
    "pufferfish-run model=resnet50 method=pufferfish dataset.folder=imagenette2 dataset.classes=10 dataset.loader.cache=true": (
        "needs the data"
    ),
    "pufferfish-run model=resnet50 method=pufferfish accumulate=8": "needs the data",
    "pip install 'pufferfish-bench[cluster]'": "needs the internet",
    "make tables PROFILE=paper LAUNCHER=slurm SLURM='partition=gpu account=me cpus_per_task=8 timeout_min=720' WAIT=0": (
        "needs a cluster; tests/paper/test_cluster.py has an imitation"
    ),
    "pufferfish-run --multirun hydra/launcher=submitit_slurm hydra.launcher.partition=gpu hydra.launcher.gpus_per_node=1 "
    "hydra.launcher.timeout_min=720 model=vgg19 method=vanilla,pufferfish seed=1,2,3": "needs a cluster",
    "torchrun --nproc-per-node 8 -m pufferfish_bench model=resnet18_distributed method=pufferfish "
    "reducer@method.warmup_reducer=powersgd method.warmup_reducer.rank=4": "needs 8 GPUs and the data",
    "PROCESSES=8 scripts/torchrun.sh model=resnet50 method=pufferfish global_batch=2048 schedule.scale=linear "
    "schedule.ramp_epochs=5 schedule.ramp_from=0.125": "needs 8 GPUs and the data",
    "NODES=2 MASTER=first.example PROCESSES=8 scripts/torchrun.sh model=resnet50 method=pufferfish": "needs two machines",
    "sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 scripts/slurm.sh model=resnet50 method=pufferfish": "needs a cluster",
}  # fmt: skip

pytestmark = pytest.mark.xdist_group("printed")  # the commands share their folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("printed")


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Shell:
    """Runs commands in a folder that has the runs of `make demo`, at toy size."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_DIR", str(folder))
    run = Shell(monkeypatch, capsys)
    for method in ("vanilla", "pufferfish"):
        if not (folder / "results/runs/demo" / method).exists():
            demo = f"model=resnet18_demo profile=smoke method={method} run_dir=results/runs/demo/{method}"
            run(f"pufferfish-run {demo} {NET} {IMAGES} warmup_epochs=1")
    return run


def test_every_command_of_the_pages_is_run_or_listed():
    found = {line for page in PAGES if str(page.relative_to(REPOSITORY)) not in OWN_TESTS for line in printed(page.read_text())}
    found |= set(in_sentences((REPOSITORY / "README.md").read_text()))
    assert found == RUN_HERE.keys() | NOT_HERE.keys()
    assert not RUN_HERE.keys() & NOT_HERE.keys()


def test_the_commands_of_the_readme_are_run_as_they_are_printed():
    readme = set(printed((REPOSITORY / "README.md").read_text()))
    assert {command for command in readme & RUN_HERE.keys() if RUN_HERE[command]} == set()


@pytest.mark.parametrize("command", RUN_HERE)
def test_a_printed_command_runs(shell: Shell, command: str, request: pytest.FixtureRequest):
    if command.startswith("scripts/netlab"):
        request.getfixturevalue("lab")
    said = shell(f"{command.replace('results/runs/RUN ...', RUN)} {RUN_HERE[command]}".strip())
    assert said or "submitit" in command  # whose runs print into their logs
