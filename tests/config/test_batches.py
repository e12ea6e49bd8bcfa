"""The global batch of a run, its part on each worker, and the batch that the learning rate was chosen for."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config import batches, build
from pufferfish_bench.config.parts import build_parts
from pufferfish_bench.config.settings import settings_of
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.paper import tables
from pufferfish_bench.records.files import RUN, read_json
from pufferfish_bench.training.schedules import Clock
from tests.support.commands import Command
from tests.support.repository import REPOSITORY

MODELS = sorted(path.stem for path in (REPOSITORY / "conf" / "model").glob("*.yaml"))
OWN_NET = {"any": ("model.net._target_=torch.nn.Flatten",)}
PAPERS = {
    "resnet18_distributed": 2048,
    "resnet50": 256,
    "wrn50_2": 256,
    "resnet18": 128,
    "vgg19": 128,
    "lstm": 20,
    "transformer": 256,
}
# the paper's tables whose runs have several workers or override the batch size
TABLES = ("figure4a", "figure4b", "figure4c", "figure4c_end_to_end", "figure6", "figure7", "table19")


def composed(*overrides: str, workers: int) -> DictConfig:
    return build.composed([*overrides, f"workers={workers}"])


def warnings(caplog: pytest.LogCaptureFixture, *overrides: str, workers: int = 1) -> list[str]:
    """The warnings of a run with these overrides about its batch."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        batches.warn(composed(*overrides, workers=workers))
    return caplog.messages


@pytest.mark.parametrize("model", MODELS)
def test_the_papers_recipes_train_with_their_global_batch_on_any_number_of_workers_that_divides_it(caplog, model: str):
    words = (f"model={model}", *OWN_NET.get(model, ()))
    for workers in (1, 4):
        config = composed(*words, workers=workers)
        assert config.batch_size * workers == config.schedule.batch == PAPERS.get(model, config.schedule.batch)
        assert warnings(caplog, *words, workers=workers) == []
    with pytest.raises(
        InputError, match=f"global_batch={config.schedule.batch} cannot be divided among 3 workers; .* such as [24]"
    ):
        composed(*words, workers=3)
    assert len(warnings(caplog, *words, "batch_size=3", workers=4)) == 1


@given(batch=st.integers(1, 5000), workers=st.integers(1, 64))
def test_the_workers_share_the_global_batch_equally_or_are_told_how_many_can(batch: int, workers: int):
    if batch % workers == 0:
        assert batches.per_worker(batch, workers) * workers == batch
    else:
        with pytest.raises(InputError) as refused:
            batches.per_worker(batch, workers)
        allowed = int(re.search(r"such as (\d+):", str(refused.value))[1])
        assert batches.per_worker(batch, allowed) * allowed == batch


def test_a_batch_of_each_worker_that_the_user_or_a_recipe_sets_replaces_that_of_the_global_batch():
    assert composed("model=resnet50", "batch_size=5", workers=3).batch_size == 5
    assert composed("model=resnet50", "global_batch=48", workers=3).batch_size == 16
    assert composed("model=resnet50", "profile=cpu", workers=3).batch_size == 32


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("global_batch=48", "batch_size=8"), "global_batch=48, but batch_size=8 x 2 workers makes 16: set one of them"),
        (("batch_size=8", "accumulate=9"), "accumulate=9 must be from 1 to batch_size=8"),
        (("batch_size=8", "accumulate=0"), "accumulate=0 must be from 1 to batch_size=8"),
        (("schedule.scaled_by=2",), "schedule.scaled_by=2 cannot be set: it follows from schedule.scale"),
        (("global_batch=null",), "batch_size is not set: use batch_size= with the batch of each worker, or global_batch="),
        (("global_batch=0",), "global_batch=0: a whole number of at least 1 is expected"),
        (("schedule.batch=0", "batch_size=8"), "schedule.batch=0: a whole number of at least 1 is expected, or null"),
        (("schedule.scale=cube",), "schedule.scale=cube is not known; allowed: none, linear, sqrt"),
        (("schedule.batch=null", "batch_size=8", "schedule.scale=linear"), "schedule.scale=linear needs schedule.batch="),
    ],
)
def test_settings_of_the_batch_that_make_no_sense_are_refused(words: tuple[str, ...], said: str):
    with pytest.raises(InputError, match=re.escape(said)):
        batches.check(composed("model=resnet50", *words, workers=2))


@pytest.mark.parametrize(("scale", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_is_multiplied_by_the_rule_that_is_chosen_and_by_nothing_else(scale: str, factor: float):
    words = ("model=resnet50", "model.net.width=0.05", "schedule.ramp_epochs=5")
    usual, other = (
        build_parts(composed(*words, *more, workers=8), single_process()).schedule
        for more in ((), ("global_batch=1024", f"schedule.scale={scale}"))
    )
    for clock in (Clock(epoch, step, 10, 0) for epoch in (0, 3, 40) for step in (0, 7)):
        assert other(clock) == pytest.approx(factor * usual(clock))
        assert other(clock, learning_rate=3.0) == pytest.approx(factor * usual(clock, learning_rate=3.0))  # as a phase sets it


def test_a_scaled_rate_and_accumulation_make_another_run_and_their_defaults_do_not():
    def settings(*more: str, workers: int = 2) -> dict:
        return settings_of(composed("model=resnet50", *more, workers=workers))

    usual = settings()
    assert "accumulate" not in usual
    assert not {"batch", "scale", "scaled_by"} & set(usual["schedule"])
    assert settings("schedule.scale=linear", "schedule.batch=256", "accumulate=1") == usual  # a ratio of 1
    assert settings("accumulate=2") == usual | {"accumulate": 2}
    assert settings("batch_size=256", "schedule.scale=linear")["schedule"] == usual["schedule"] | {"scaled_by": 2.0}
    assert settings("batch_size=128", "schedule.batch=64") == usual  # only says what the rate was chosen for


@pytest.mark.parametrize("profile", ["cpu", "smoke"])
@pytest.mark.parametrize("model", ["resnet18", "resnet18_distributed", "resnet50", "lstm", "transformer"])
def test_miniatures_run_on_another_number_of_workers_without_a_warning(caplog, model: str, profile: str):
    assert warnings(caplog, f"model={model}", f"profile={profile}", workers=2) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_cell_of_the_papers_tables_warns(caplog, name: str):
    for cell in tables.read(name, "paper").cells:
        assert warnings(caplog, *cell.overrides, workers=cell.workers) == [], cell.name


def test_the_warning_names_both_batches_and_what_to_change(caplog):
    assert warnings(caplog, "model=resnet50", "batch_size=256", workers=32) == [
        "the global batch is 8192 (batch_size=256 x 32 workers), but the learning rate of this recipe was chosen for 256: "
        "use batch_size=8, or schedule.scale=linear, or set schedule.learning_rate for 8192 and schedule.batch=8192"
    ]
    assert warnings(caplog, "model=resnet50", "batch_size=8", workers=32) == []
    assert warnings(caplog, "model=resnet50", "batch_size=256", "schedule.batch=8192", workers=32) == []
    assert "use a number of workers that divides 256" in warnings(caplog, "model=resnet50", "batch_size=256", workers=3)[0]
    scaled = warnings(caplog, "model=resnet50", "batch_size=256", "schedule.scale=linear", workers=32)
    assert [line.rpartition(": ")[2] for line in scaled] == ["schedule.scale=linear multiplies it by 32"]


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
    warned = invoke(*words, "batch_size=8", "schedule.batch=16")
    assert warned.returncode == 0
    assert warned.stderr.count("warning: the global batch is 8 (batch_size=8 x 1 worker)") == 1
    assert read_json(tmp_path / "run" / RUN)["batch"] == {
        "global_batch": 8, "batch_size": 8, "accumulate": 1, "learning_rate_chosen_for": 16, "scale": "none", "scaled_by": 1.0,
    }  # fmt: skip
    assert "global batch" not in invoke(*words, "batch_size=8").stderr  # the same run: it is finished
