"""lowrank and pruning are libraries: they need torch, but no module of the runner."""

import subprocess
import sys

import pytest

ENDING = """
import sys
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & {"hydra", "omegaconf", "rich"} | {name for name in sys.modules if name.startswith("pufferfish_bench.")}))
"""
LOW_RANK = """
import torch
from torch import nn
from pufferfish_bench import lowrank

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 20), nn.Linear(20, 4))
images = torch.randn(2, 3, 8, 8)
before = model(images)
choice = lowrank.choose(model, keep=["3"], first=None, rank_ratio=1.0)
assert choice.ranks == {"0": 8, "2": 20}, choice
assert lowrank.stable_rank(model[2]) <= 20
done = lowrank.factorise(model, choice.ranks)
assert all(layer["energy"] > 0.999 for layer in done.values())
torch.testing.assert_close(model(images), before, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(lowrank.merge(model)(images), before, rtol=1e-3, atol=1e-4)
assert isinstance(model[2], nn.Linear)
"""
PRUNING = """
import torch
from torch import nn
from pufferfish_bench import pruning

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
nn.init.uniform_(model[1].weight)
scales = pruning.scales(model)
masks = pruning.at_least_one(pruning.channel_masks(scales, 0.5), scales)
assert pruning.channels.remove(model, masks) == {"0": [3, 3], "3": [3, 4]}
assert model(torch.randn(1, 3, 8, 8)).shape == (1, 4, 4, 4)
"""


@pytest.mark.parametrize(("program", "package"), [(LOW_RANK, "lowrank"), (PRUNING, "pruning")])
def test_a_library_works_in_a_fresh_process_without_hydra_and_without_the_runner(program: str, package: str):
    finished = subprocess.run([sys.executable, "-c", program + ENDING], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    loaded = finished.stdout.split()
    assert {name.split(".")[1] for name in loaded if "." in name} == {"base", package}
    assert not {"hydra", "omegaconf", "rich", "pufferfish_bench.trainer", "pufferfish_bench.base.console"} & set(loaded)
