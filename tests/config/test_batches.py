"""The global batch of a run, and the one that its recipe's learning rate is tuned for."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from pufferfish_bench.config import batches
from pufferfish_bench.config.settings import config_dir
from pufferfish_bench.paper import tables
from tests.support.commands import Command
from tests.support.repository import REPOSITORY

MODELS = sorted(path.stem for path in (REPOSITORY / "conf" / "model").glob("*.yaml"))
OWN_NET = {"any": ("model.net._target_=torch.nn.Flatten",)}
WORKERS = {"resnet18_distributed": 8}  # recipes that are not for one process
# the paper's tables whose runs have several workers or override the batch size
TABLES = ("figure4a", "figure4b", "figure4c", "figure4c_end_to_end", "figure6", "figure7", "table19")


def warnings(caplog: pytest.LogCaptureFixture, *overrides: str, workers: int = 1) -> list[str]:
    """The warnings of a run with these overrides about its batch."""
    caplog.clear()
    with initialize_config_dir(config_dir(), version_base="1.3"), caplog.at_level(logging.WARNING):
        config = compose("config", overrides=[*overrides, f"workers={workers}"], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        batches.warn(config)
    return caplog.messages


@pytest.mark.parametrize("model", MODELS)
def test_the_papers_recipes_warn_only_on_a_number_of_workers_they_are_not_tuned_for(caplog, model: str):
    workers = WORKERS.get(model, 1)
    words = (f"model={model}", *OWN_NET.get(model, ()))
    assert warnings(caplog, *words, workers=workers) == []
    assert len(warnings(caplog, *words, workers=4 * workers)) == 1


@pytest.mark.parametrize("profile", ["cpu", "smoke"])
@pytest.mark.parametrize("model", ["resnet18", "resnet18_distributed", "resnet50", "lstm", "transformer"])
def test_miniatures_run_on_another_number_of_workers_without_a_warning(caplog, model: str, profile: str):
    assert warnings(caplog, f"model={model}", f"profile={profile}", workers=2) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_cell_of_the_papers_tables_warns(caplog, name: str):
    for cell in tables.read(name, "paper").cells:
        assert warnings(caplog, *cell.overrides, workers=cell.workers) == [], cell.name


def test_the_warning_names_both_batches_and_what_to_change(caplog):
    assert warnings(caplog, "model=resnet50", workers=32) == [
        "the global batch is 8192 (batch_size=256 x 32 workers), but the learning rate of this recipe was chosen for 256: "
        "use batch_size=8, or set schedule.learning_rate for 8192 and global_batch=8192"
    ]
    assert warnings(caplog, "model=resnet50", "batch_size=8", workers=32) == []
    assert warnings(caplog, "model=resnet50", "global_batch=8192", workers=32) == []
    assert "use a number of workers that divides 256" in warnings(caplog, "model=resnet50", workers=3)[0]


def examples(script: str) -> list[tuple[int, Sequence[str]]]:
    """The example commands in a launcher's comments: the number of ranks they start, and their settings."""
    found = []
    for line in (REPOSITORY / "scripts" / script).read_text().splitlines():
        before, called, words = line.partition(f" scripts/{script} ")
        if line.startswith("#") and called:
            counts = re.findall(r"(?:NODES=|PROCESSES=|--nodes |--gpus-per-node )(\d+)", before)
            ranks = 1
            for count in counts:
                ranks *= int(count)
            found.append((ranks, words.split()))
    return found


@pytest.mark.parametrize(("script", "count"), [("slurm.sh", 1), ("torchrun.sh", 2)])
def test_the_launchers_example_commands_train_the_papers_recipes_without_a_warning(caplog, script: str, count: int):
    assert len(examples(script)) == count
    for ranks, words in examples(script):
        assert ranks > 1
        assert warnings(caplog, *words, workers=ranks) == [], words


def test_a_run_warns_about_its_batch_once(invoke: Command, tmp_path: Path):
    words = (
        "profile=smoke",
        "model.net.width=0.05",
        "dataset.train_images=16",
        "dataset.test_images=8",
        "epochs=1",
        "run_dir=run",
    )
    warned = invoke(*words, "batch_size=8", "global_batch=16")
    assert warned.returncode == 0
    assert warned.stderr.count("warning: the global batch is 8 (batch_size=8 x 1 worker)") == 1
    assert (
        "global batch" not in invoke(*words, "batch_size=8").stderr
    )  # global_batch is outside the identity: the run is finished
