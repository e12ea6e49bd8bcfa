"""Mixed precision never kills the process on a CPU that reports instructions it cannot execute."""

import os
import subprocess
import sys

import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.training import precision
from pufferfish_bench.training.precision import LIMIT, MixedPrecision

DIES_ABOVE = """
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") not in {allowed}:
    os.kill(os.getpid(), signal.SIGILL)
"""


@pytest.fixture(autouse=True)
def no_inherited_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LIMIT, "")  # so that monkeypatch restores it even if it was not set
    monkeypatch.delenv(LIMIT)


@pytest.mark.parametrize(
    ("allowed", "limit"),
    [
        ([None], None),
        (["AVX512_CORE_BF16", "AVX512_CORE", "AVX2"], "AVX512_CORE_BF16"),
        (["AVX512_CORE", "AVX2"], "AVX512_CORE"),
        (["AVX2"], "AVX2"),
    ],
)
def test_a_process_that_dies_on_an_instruction_gets_the_mildest_limit_it_survives(allowed: list, limit: str | None):
    assert precision.safe_limit(DIES_ABOVE.format(allowed=allowed)) == limit


def test_a_cpu_that_fails_under_every_limit_is_refused_with_advice_to_use_full_precision():
    with pytest.raises(InputError, match="precision=fp32"):
        precision.safe_limit(DIES_ABOVE.format(allowed=[]))


def test_onednn_obeys_a_limit_that_is_set_after_torch_is_imported():
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


def test_the_probe_is_a_convolution_that_runs_in_onednn_forward_and_backward():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    # in float32, because a CPU without bfloat16 instructions does not use oneDNN for bfloat16
    program = precision.BFLOAT16_CONVOLUTION.replace("dtype=torch.bfloat16", "enabled=False")
    environment = os.environ | {"ONEDNN_VERBOSE": "1"}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    for direction in ("forward", "backward_data", "backward_weights"):
        assert f",{direction}" in finished.stdout


@pytest.mark.parametrize("too_late", [False, True])
def test_a_limit_that_would_come_too_late_is_refused(too_late: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "BFLOAT16_CONVOLUTION", DIES_ABOVE.format(allowed=["AVX2"]))
    if too_late:
        with pytest.raises(InputError, match="ONEDNN_MAX_CPU_ISA=AVX2"):
            precision.limit_onednn(too_late=True)
        assert LIMIT not in os.environ
    else:
        precision.limit_onednn(too_late=False)
        assert os.environ[LIMIT] == "AVX2"


def test_an_enabled_scaler_can_load_a_run_that_was_started_on_a_cpu():
    mixed = MixedPrecision()
    mixed.scaler = torch.amp.GradScaler("cpu", enabled=True)
    mixed.load_state_dict({})
    state = mixed.state_dict() | {"scale": 8.0}
    mixed.load_state_dict(state)
    assert mixed.state_dict()["scale"] == 8.0
