"""Every model x method x reducer takes its steps on torch's meta device: forward, backward, reduction, optimizer, surgery, evaluation.

There a tensor on the wrong device, and a value that the host reads, fails. So the code of a GPU is rehearsed without one.

This cannot find: what only values show (a kernel that computes something wrong, a NaN, an overflow of float16); branches for CUDA
alone (`is_cuda`: torch's fused LSTM, logits in one piece), AMP, kernels that CUDA does not have, memory that does not suffice, the
order of streams, and collectives that do not match between ranks. Batches are prepared on the CPU. What is read between steps (the loss
of an epoch, the metrics) passes through `World.on_host`; what a method measures after an epoch, the beam search of a final result, the
choice of what to prune, and checkpoints need values and are left out.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pufferfish_bench.core import Method, Run
from tests.support.meta import RECIPES, OffDevice, Rehearsal, rehearse
from tests.support.reducers import REDUCERS
from tests.support.repository import configured

CONVOLUTIONAL = ("any", "resnet18", "resnet50", "vgg11", "vgg19", "vgg19_lth", "wrn50_2")  # what eb_train and lth can prune
NETS = [name for name in configured("model") if name not in RECIPES]
NAMED_FOR_A_REDUCER = [name for name in configured("method") if name in REDUCERS]  # plain training with that reducer
PRUNING = ("eb_train", "lth")
METHODS = [name for name in configured("method") if name not in NAMED_FOR_A_REDUCER]
COMBINATIONS = [(net, method) for net in NETS for method in METHODS if method not in PRUNING or net in CONVOLUTIONAL]
PHASES = {
    "vanilla": ["train"], "hybrid": ["low_rank"], "low_rank": ["low_rank"], "pufferfish": ["warmup", "low_rank"],
    "eb_train": ["search", "retrain"], "lth": ["level0", "level1"],
}  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("meta_device"),
    pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter"),
]


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize(("net", "method"), COMBINATIONS)
def test_every_model_method_and_reducer_stays_on_its_device(net: str, method: str, reducer: str):
    assert rehearse(net, method, reducer).trained == PHASES[method]
