"""Mixed precision trains, and never kills the process on a CPU that promises too much."""

import os
import subprocess
import sys

import pytest
import torch

from pufferfish_bench import precision
from pufferfish_bench.errors import InputError
from pufferfish_bench.precision import LIMIT, FullPrecision, MixedPrecision
from tests.conftest import TinyNet, tiny_task

DIES_ABOVE = """
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") not in {allowed}:
    os.kill(os.getpid(), signal.SIGILL)
"""


@pytest.fixture(autouse=True)
def no_inherited_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(LIMIT, raising=False)


@pytest.mark.parametrize(
    ("allowed", "limit"),
    [
        ([None], None),
        (["AVX512_CORE_BF16", "AVX512_CORE", "AVX2"], "AVX512_CORE_BF16"),
        (["AVX512_CORE", "AVX2"], "AVX512_CORE"),
        (["AVX2"], "AVX2"),
    ],
)
def test_a_process_that_dies_of_an_instruction_is_given_the_mildest_limit_it_survives(allowed: list, limit: str | None):
    assert precision.safe_limit(DIES_ABOVE.format(allowed=allowed)) == limit


def test_a_cpu_that_survives_under_no_limit_is_told_to_use_full_precision():
    with pytest.raises(InputError, match="precision=fp32"):
        precision.safe_limit(DIES_ABOVE.format(allowed=[]))


def test_onednn_obeys_a_limit_that_is_set_after_torch_was_imported():
    program = f"""
import os, torch
os.environ["{LIMIT}"] = "SSE41"
os.environ["ONEDNN_VERBOSE"] = "1"
torch.nn.Conv2d(64, 64, 3)(torch.randn(16, 64, 16, 16))  # a smaller one would not go to oneDNN
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ONEDNN")}
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "cpu,isa:Intel SSE4.1" in finished.stdout


def test_the_probe_is_a_convolution_that_goes_to_onednn_forward_and_backward():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    # in float32, because a CPU without bfloat16 instructions does bfloat16 without oneDNN
    program = precision.BFLOAT16_CONVOLUTION.replace("dtype=torch.bfloat16", "enabled=False")
    environment = os.environ | {"ONEDNN_VERBOSE": "1"}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    for direction in ("forward", "backward_data", "backward_weights"):
        assert f",{direction}" in finished.stdout


def test_mixed_precision_follows_full_precision_closely():
    losses = {}
    for kind in (FullPrecision, MixedPrecision):
        torch.manual_seed(0)
        model, task, number_format = TinyNet(), tiny_task(), kind()
        model.drop.p = 0.0
        number_format.prepare(torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses[kind] = []
        for epoch in range(3):
            for batch in task.batches(epoch, 0):
                with number_format.autocast():
                    loss = task.loss(model, batch)
                optimizer.zero_grad()
                number_format.backward(loss)
                number_format.unscale(optimizer)
                number_format.step(optimizer)
                losses[kind].append(float(loss.detach()))
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    full, mixed = losses[FullPrecision], losses[MixedPrecision]
    assert mixed == pytest.approx(full, rel=0.05)
    assert mixed != full  # bfloat16 was really used
