"""What several tests share: real processes, real data, and the smallest task and model that could fail."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import hypothesis
import pytest
import torch
from torch import nn

from pufferfish_bench import main, triggers
from pufferfish_bench.tasks.images import Images
from pufferfish_bench.tasks.memory import in_memory
from pufferfish_bench.world import alone

# The machine may be busy: no example fails for being slow. The same examples every time: a failure can be looked at again.
hypothesis.settings.register_profile("project", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("project")

# The nets are tiny: a second thread would only wait for a core, in this process and in those that it starts.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Whoever runs us in the background has these two ignored, and so would the processes that the tests mean to stop with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

REPOSITORY = Path(__file__).parents[1]
Command = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def arguments() -> Callable[..., list[str]]:
    """The words that start pufferfish-run in a process of its own."""
    return lambda *overrides: [sys.executable, "-m", "pufferfish_bench", *overrides]


@pytest.fixture
def command(tmp_path: Path, arguments: Callable[..., list[str]]) -> Command:
    """Run pufferfish-run to its end in an empty directory, in a process of its own."""

    def run(*overrides: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        without_data = {key: value for key, value in os.environ.items() if key != "PUFFERFISH_DATA"}
        return subprocess.run(
            arguments(*overrides),
            cwd=tmp_path,
            env=without_data | (environment or {}),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Command:
    """Run pufferfish-run to its end in an empty directory, in this process: the same, without the seconds of imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as main sets it; put back afterwards

    def run(*overrides: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess:
        words = ["pufferfish-run", *overrides]
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        code = 0
        try:
            main.run()
        except SystemExit as exit:
            code = exit.code
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[[Callable, Iterable[object], str], None]:
    """Check that a command's main refuses these words with code 2 and one line that says so."""

    def check(main: Callable[[list[str]], None], words: Iterable[object], sentence: str) -> None:
        with pytest.raises(SystemExit) as exit:
            main([str(word) for word in words])
        complaint = capsys.readouterr().err
        assert exit.value.code == 2
        assert sentence in complaint
        assert complaint.count("\n") == 1

    return check


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Where the real data sets lie."""
    root = os.environ.get("PUFFERFISH_DATA")
    if not root:
        pytest.skip("PUFFERFISH_DATA is not set: no real data here")
    return Path(root)


class TinyNet(nn.Module):
    """A convolution, a BatchNorm, dropout and two linear layers: one of everything that has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, stride=2, bias=False)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(8 * 4, 12)
        self.fc2 = nn.Linear(12, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv1(images)).relu()
        return self.fc2(self.fc1(self.drop(self.conv2(x).flatten(1))).relu())


TINY_LAYERS = {"keep": ["conv1", "fc2"], "first": None, "rank_ratio": 0.5, "ranks": {}}
PUFFERFISH = {
    "layers": TINY_LAYERS, "trigger": partial(triggers.fixed_epoch, epoch=100), "ranks": "ratio", "prune_ratio": 0.3, "masks": 3,
    "warmup_reducer": None,
}  # fmt: skip


def tiny_task(*, seed: int = 1, images: int = 50, batch_size: int = 8) -> Images:
    """Random 8x8 images of four classes; 50 in batches of 8 leave a last batch of 2."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % 4
    return in_memory(
        train=(pixels, labels), test=(pixels[:20], labels[:20]), classes=4, mean=(0.5,) * 3, std=(0.25,) * 3,
        label_smoothing=0.0, batch_size=batch_size, test_batch_size=6, seed=seed, world=alone(),
    )  # fmt: skip
