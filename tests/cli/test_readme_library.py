"""The README's library example, run as it is printed."""

import re

import torch
from torch import nn

from pufferfish_bench import lowrank
from tests.support.repository import REPOSITORY


def test_the_readmes_library_example_factorises_and_merges():
    text = (REPOSITORY / "README.md").read_text()
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
