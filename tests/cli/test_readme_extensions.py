"""The README's examples of an own method, reducer and model, run as they are printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from pufferfish_bench import lowrank
from tests.support.repository import REPOSITORY
from tests.support.torchrun import environment

TINY = ("dataset.train_images=32", "dataset.test_images=8", "batch_size=8", "run_dir=run")


def chapter() -> str:
    text = (REPOSITORY / "README.md").read_text()
    return text[text.index("## Adding a model, a method or a reducer") :]


def write_files(folder: Path) -> None:
    """Every fenced block whose first line is a comment with a path becomes that file."""
    for path, content in re.findall(r"```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)```", chapter(), flags=re.DOTALL):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def test_the_readmes_method_reducer_and_model_train_in_two_ranks(tmp_path: Path):
    write_files(tmp_path)
    printed = re.search(r"```\n(pufferfish-run --config-dir .*)\n```", chapter())[1]
    words = [*shlex.split(printed)[1:], *TINY]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pufferfish_bench"]
    done = subprocess.run([*command, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["operations"][0]["note"] == "the head trains on"
    assert record["summary"]["trainable_parameters"] == 33 * 10 < record["summary"]["parameters"]
    assert record["summary"]["bytes_per_step"] == 4 * (33 * 10 // 2)


def test_the_readmes_model_is_factorised_and_the_library_example_runs(tmp_path: Path):
    write_files(tmp_path)
    words = ["--config-dir", "my_conf", "model=small", "method=pufferfish", "profile=smoke", "epochs=2", "warmup_epochs=1", *TINY]
    done = subprocess.run(
        [sys.executable, "-m", "pufferfish_bench", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "run" / "run.json").read_text())["operations"][0]["layers"]) == ["body.2"]
    net = nn.Sequential()
    net.add_module("body", nn.Linear(8, 8))
    net.add_module("head", nn.Linear(8, 2))
    x, weights = torch.randn(3, 8), [p.shape for p in net.parameters()]
    exec(re.findall(r"```python\n(from pufferfish_bench import lowrank.*?)```", chapter(), flags=re.DOTALL)[0], {"net": net})
    assert [p.shape for p in net.parameters()] == weights
    assert net(x).shape == (3, 2)
    assert isinstance(net.body, nn.Linear)
    assert lowrank.stable_rank(net.body) <= 2.001  # rank 2 of 8 was kept
