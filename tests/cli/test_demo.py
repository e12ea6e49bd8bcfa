"""make demo trains both nets, shows whether Pufferfish pays, and draws a picture."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

TOY = "model=resnet18_demo profile=smoke model.net.width=0.05 epochs=2 warmup_epochs=1 dataset.train_images=128"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the demo prints at toy size, and the folder that it writes."""
    folder = tmp_path_factory.mktemp("demo")
    here = [f"BIN={Path(sys.executable).parent}", "INSTALLED=", f"DEMO={TOY}", f"DEMO_RUNS={folder}/demo"]
    finished = subprocess.run(["make", "-s", "demo", *here], cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, folder / "demo"


def test_the_demo_ends_with_a_table_and_one_sentence(demo: tuple[str, Path]):
    lines = [line for line in demo[0].splitlines() if line.strip()]
    table = lines[next(n for n, line in enumerate(lines) if "ratio" in line) :]
    rows = ("parameters", "MACs", "gradients, bytes a step", "seconds an epoch", "seconds in all", "test accuracy, %")
    for row in rows:
        assert any(line.strip().startswith(row) for line in table), row
    assert any(line.startswith("pufferfish against vanilla: ") for line in table)


def test_the_demo_draws_accuracy_over_seconds_and_says_where(demo: tuple[str, Path]):
    printed, folder = demo
    for picture in (folder / "payoff.png", folder / "payoff.svg"):
        assert picture.stat().st_size > 0
        assert f"written: {picture}" in printed
    svg = (folder / "payoff.svg").read_text(encoding="utf-8")
    assert "seconds of training" in svg
    assert "test accuracy, %" in svg
