"""The global batch of a run, and the one that its recipe's learning rate is made for."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from pufferfish_bench import table
from pufferfish_bench.settings import config_dir, warn_of_batch
from tests.conftest import REPOSITORY, Command

MODELS = sorted(path.stem for path in (REPOSITORY / "conf" / "model").glob("*.yaml"))
WORKERS = {"resnet18_distributed": 8}  # of the recipes that are not for one process
# the paper's tables whose runs have several workers, or batches of their own
TABLES = ("figure4a", "figure4b", "figure4c", "figure6", "figure7", "table19")


def warnings(caplog: pytest.LogCaptureFixture, *overrides: str, workers: int = 1) -> list[str]:
    """What a run with these words says of its batch."""
    caplog.clear()
    with initialize_config_dir(config_dir(), version_base="1.3"), caplog.at_level(logging.WARNING):
        config = compose("config", overrides=[*overrides, f"workers={workers}"], return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        warn_of_batch(config)
    return caplog.messages


@pytest.mark.parametrize("model", MODELS)
def test_the_papers_recipes_say_nothing_on_the_workers_they_are_made_for_and_warn_on_others(caplog, model: str):
    workers = WORKERS.get(model, 1)
    assert warnings(caplog, f"model={model}", workers=workers) == []
    assert len(warnings(caplog, f"model={model}", workers=4 * workers)) == 1


@pytest.mark.parametrize("profile", ["cpu", "smoke"])
@pytest.mark.parametrize("model", ["resnet18", "resnet18_distributed", "resnet50", "lstm", "transformer"])
def test_miniatures_are_for_any_number_of_workers(caplog, model: str, profile: str):
    assert warnings(caplog, f"model={model}", f"profile={profile}", workers=2) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_cell_of_the_papers_tables_warns(caplog, name: str):
    for cell in table.read(name, "paper").cells:
        assert warnings(caplog, *cell.overrides, workers=cell.workers) == [], cell.name


def test_the_warning_names_both_batches_and_what_to_change(caplog):
    assert warnings(caplog, "model=resnet50", workers=32) == [
        "the global batch is 8192 (batch_size=256 x 32 workers), but the learning rate of this recipe is for 256: "
        "use batch_size=8, or set schedule.learning_rate for 8192 and global_batch=8192"
    ]
    assert warnings(caplog, "model=resnet50", "batch_size=8", workers=32) == []
    assert warnings(caplog, "model=resnet50", "global_batch=8192", workers=32) == []
    assert "use a number of workers that divides 256" in warnings(caplog, "model=resnet50", workers=3)[0]


def examples(script: str) -> list[tuple[int, Sequence[str]]]:
    """The command lines in the comments of a launcher: how many ranks they start, and their settings."""
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
def test_the_examples_of_the_launchers_train_the_papers_recipes(caplog, script: str, count: int):
    assert len(examples(script)) == count
    for ranks, words in examples(script):
        assert ranks > 1
        assert warnings(caplog, *words, workers=ranks) == [], words


def test_a_run_says_it_once(invoke: Command, tmp_path: Path):
    words = ("profile=smoke", "model.width=0.05", "dataset.train_images=16", "dataset.test_images=8", "epochs=1", "run_dir=run")
    told = invoke(*words, "batch_size=8", "global_batch=16")
    assert told.returncode == 0
    assert told.stderr.count("warning: the global batch is 8 (batch_size=8 x 1 worker)") == 1
    assert "global batch" not in invoke(*words, "batch_size=8").stderr  # and it is the same run: finished
