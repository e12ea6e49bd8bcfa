"""Every subject of the benchmark runs at toy size, so that none can rot."""

import inspect
import math
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.bench import as_in_a_run, growth, loader, nets, suite, textbook
from pufferfish_bench.bench.targets import TARGETS
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.records.files import read_json

TOY: dict[str, dict[str, Any]] = {
    "nets": {"rounds": 2, "large_rounds": 1, "batch_size": 3, "large_batch_size": 2, "large_size": 32, "width": 0.5},
    "lstm": {"rounds": 2, "hidden": 12, "batch_size": 3, "steps": 4, "rank": 3},
    "transformer": {"rounds": 1, "pairs": 2, "tokens": 4, "width": 16, "vocabulary": 50},
    "epoch": {"rounds": 2, "images": 24, "batch_size": 8, "width": 0.125},
    "cifar": {"rounds": 1, "images": 20, "batch_size": 7, "workers": 1},
    "loader": {"rounds": 1, "pictures": 6, "batch_size": 4, "size": 16, "workers": 1, "photograph": (40, 30)},
    "svd": {"rounds": 1, "width": 0.05},
    "compression": {"rounds": 2, "width": 0.05},
    "flat": {"rounds": 2, "batch_size": 3, "width": 0.125},
    "startup": {"rounds": 1},
    "memory": {"rounds": 1, "batch_size": 8, "width": 0.05, "steps": 3, "later_epochs": 60},
    "growth": {"rounds": 1, "widths": (0.125, 0.25), "batch_sizes": (2, 3)},
}
ROWS = {
    "nets": ["resnet18", "resnet18_textbook", "vgg19", "resnet50", "wrn50_2", "resnet18_narrow"],
    "loader": ["loader_exact", "loader_scaled"],
    "svd": ["svd_resnet18", "svd_resnet50", "svd_wrn50_2"],
    "compression": ["powersgd_2", "powersgd_4", "signum"],
    "growth": [],
}


@pytest.fixture
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PUFFERFISH_DATA", str(tmp_path / "nowhere"))


@pytest.fixture
def _settings_of_torch():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_no_data", "_settings_of_torch")
@pytest.mark.parametrize("subject", suite.SUBJECTS)
def test_a_subject_writes_its_rows_figures_and_conditions(subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = import_module(f"pufferfish_bench.bench.{subject}")
    monkeypatch.setattr(module, "QUICK", TOY[subject])
    found = read_json(suite.measure(subject, tmp_path, quick=True))
    assert [row["name"] for row in found["rows"]] == [TARGETS[key].row for key in ROWS.get(subject, [subject])]
    assert found["figures"]
    assert found["quick"] is True
    assert {key: found["settings"][key] for key in TOY[subject]} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in TOY[subject].items()
    }
    assert {"commit", "versions", "hardware"} <= set(found)
    for row in found["rows"]:
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
        assert row["note"]


def test_every_target_has_a_row_of_a_subject():
    keys = [key for subject in suite.SUBJECTS for key in ROWS.get(subject, [subject])]
    assert keys == list(TARGETS)


@pytest.mark.parametrize("subject", suite.SUBJECTS)
def test_sizes_of_a_quick_run_are_settings_of_the_subject(subject: str):
    module = import_module(f"pufferfish_bench.bench.{subject}")
    parameters = inspect.signature(module.measure).parameters
    assert set(module.QUICK) <= set(parameters)
    assert "rounds" in parameters
    assert all(each.default is not each.empty for each in parameters.values())


def test_the_number_of_rounds_can_be_given(tmp_path: Path):
    found = read_json(suite.measure("startup", tmp_path, quick=False, rounds=2))
    assert found["settings"] == {"rounds": 2}
    assert found["quick"] is False
    (row,), taken = found["rows"], found["figures"]["seconds"]
    ours, rival = taken.values()
    assert len(ours) == len(rival) == 2
    assert row["ratio"] == statistics.median(a / b for a, b in zip(ours, rival, strict=True))


def test_the_textbook_net_computes_what_ours_computes_in_place():
    torch.manual_seed(1)
    ours = ResNet18(classes=10, width=0.125, stem_norm=False).double()
    theirs = textbook.TextbookResNet18(10, (8, 16, 32, 64)).double()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    for mode in (True, False):
        outputs = [net.train(mode)(images) for net in (theirs, ours)]
        torch.testing.assert_close(*outputs)
        for output in outputs:
            output.square().sum().backward()
        for (name, a), (_, b) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_nets_of_the_benchmark_have_the_layers_and_the_memory_format_of_a_run():
    nets_of_a_run = as_in_a_run.nets("model=resnet18", "model.net.width=0.25", "channels_last=true")
    assert nets_of_a_run.vanilla.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert nets_of_a_run.hybrid.layer4[1].conv2.u.weight.is_contiguous(memory_format=torch.channels_last)
    assert nets_of_a_run.macs_ratio(torch.zeros(1, 3, 32, 32)) > 2


def test_the_limit_of_a_row_is_the_ratio_of_macs():
    rows, figures = nets.compared("vgg19", ["model=vgg19", "model.net.width=0.125"], rounds=1, batch_size=2, size=32)
    macs = figures["vgg19"]["macs"]
    assert rows[0].limit == macs["vanilla"] / macs["hybrid"] > 1


def test_a_hybrid_net_pays_from_where_its_gain_passes_1_for_good():
    assert growth.paying_width([(0.25, 0.5), (1.0, 1.5)]) == pytest.approx(0.5)
    assert growth.paying_width([(1.0, 2.0), (0.25, 1.1)]) == 0.25
    assert growth.paying_width([(0.25, 0.5), (1.0, 0.9)]) is None
    assert growth.paying_width([(0.125, 1.2), (0.25, 0.8), (1.0, 1.2)]) == pytest.approx(0.5)


@given(st.lists(st.floats(0.1, 5), min_size=2, max_size=5))
def test_the_paying_width_lies_among_the_measured_widths(gains: list[float]):
    widths = [2.0**-place for place in range(len(gains))][::-1]
    found = growth.paying_width(list(zip(widths, gains, strict=True)))
    if gains[-1] <= 1:
        assert found is None
    else:
        assert widths[0] <= found <= widths[-1]
        assert all(
            gain > 1 for width, gain in zip(widths, gains, strict=True) if width > found and not math.isclose(width, found)
        )


def test_synthesised_photographs_are_jpeg_files_of_the_given_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from PIL import Image

    monkeypatch.setenv("PUFFERFISH_DATA", str(tmp_path))
    with loader.photographs(3, (40, 30)) as (folder, what):
        files = sorted(folder.rglob("*.jpg"))
        assert [Image.open(path).size for path in files] == [(40, 30)] * 3
        assert "synthesised" in what
    assert not folder.exists()
    (tmp_path / "imagenet_fullsize").mkdir()
    with loader.photographs(3, (40, 30)) as (folder, what):
        assert folder == tmp_path / "imagenet_fullsize"
        assert "imagenet_fullsize" in what
