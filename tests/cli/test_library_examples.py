"""The library examples of the README and of docs/library.md, run as they are printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pufferfish_bench import lowrank
from tests.support.repository import REPOSITORY
from tests.support.torchrun import RANKS, TORCHRUN, environment


def test_the_library_example_factorises_and_merges():
    text = (REPOSITORY / "docs/library.md").read_text()
    (snippet,) = re.findall(r"```python\n(from pufferfish_bench import lowrank\n\nchoice = .*?)```", text, flags=re.DOTALL)
    net = nn.Sequential()
    net.add_module("body", nn.Linear(8, 8))
    net.add_module("head", nn.Linear(8, 2))
    shapes = [parameter.shape for parameter in net.parameters()]
    exec(snippet, {"net": net})
    assert [parameter.shape for parameter in net.parameters()] == shapes
    assert net(torch.randn(3, 8)).shape == (3, 2)
    assert isinstance(net.body, nn.Linear)
    assert lowrank.stable_rank(net.body) <= 2.001  # rank 2 of 8 was kept


SHOW = """
import json, os, pathlib
learned = {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
found = [list(switch.done), epoch, [type(layer).__name__ for layer in model], learned]
pathlib.Path(os.environ.get("RANK", "0") + ".json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize(("place", "launcher", "ranks"), [(0, (sys.executable,), 1), (1, TORCHRUN, RANKS)], ids=["plain", "ddp"])
def test_the_readmes_training_loops_switch_to_low_rank(tmp_path: Path, place: int, launcher: tuple[str, ...], ranks: int):
    diffs = re.findall(r"```diff\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    assert len(diffs) == 2
    lines = [line for line in diffs[place].splitlines() if not line.startswith("-")]
    script = [*(line[1:] for line in lines), SHOW]
    (tmp_path / "train.py").write_text("\n".join(script) + "\n")
    done = subprocess.run(
        [*launcher, "train.py"], cwd=tmp_path, env=environment() | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]  # their printed lines may be mixed
    assert found == [[["2"], 3, ["Conv2d", "ReLU", "LowRank", "Flatten", "Linear"], True]] * ranks
