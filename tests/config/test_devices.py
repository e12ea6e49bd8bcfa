"""Settings that depend on the device: TF32, and the processes that prepare batches."""

import os

import pytest
import torch

from pufferfish_bench.base import cores
from pufferfish_bench.config import parts
from pufferfish_bench.config.build import composed
from pufferfish_bench.config.settings import conditions, identity, settings_of
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.records.environment import environment, has_tf32
from pufferfish_bench.training.precision import allow_tf32

SMOKE = ("profile=smoke", "model=resnet18", "data_root=.")


@pytest.fixture(autouse=True)
def _switches_of_torch() -> None:
    yield
    allow_tf32(False)


def test_tf32_is_another_run_and_its_absence_leaves_the_identity_as_it_was():
    plain, tf32 = composed(SMOKE), composed([*SMOKE, "tf32=true"])
    assert "tf32" not in settings_of(plain)
    assert settings_of(tf32) == settings_of(plain) | {"tf32": True}
    assert identity(plain) == identity(composed([*SMOKE, "tf32=false"])) != identity(tf32)


@pytest.mark.parametrize("allowed", [False, True])
def test_every_switch_of_torch_agrees(allowed: bool):
    """The newer switches, and the older ones, whose reading raises an error if they disagree with the newer ones."""
    allow_tf32(allowed)
    backends = torch.backends
    switches = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    assert {switch.fp32_precision for switch in switches} == {"tf32" if allowed else "ieee"}
    assert backends.cuda.matmul.allow_tf32 is backends.cudnn.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


def test_full_precision_switches_tf32_off_also_where_torch_has_it_on(caplog: pytest.LogCaptureFixture):
    allow_tf32(True)
    parts.set_up_torch(composed(SMOKE), single_process())
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert caplog.text == ""
    parts.set_up_torch(composed([*SMOKE, "tf32=true"]), single_process())
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert "tf32=true has no effect here" in caplog.text


def test_the_record_says_whether_tf32_is_in_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    for allowed, capability, used in ((True, (8, 0), True), (False, (8, 0), False), (True, (7, 0), False)):
        allow_tf32(allowed)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert environment(torch.device("cuda"))["hardware"]["tf32"] is used
    allow_tf32(True)
    assert environment(torch.device("cpu"))["hardware"]["tf32"] is False
    assert not has_tf32((7, 5))


@pytest.mark.parametrize(("here", "workers", "processes"), [(8, 1, 8), (8, 2, 4), (2, 4, 1)])
def test_batches_are_prepared_by_as_many_processes_as_a_worker_has_cores(
    monkeypatch: pytest.MonkeyPatch, here: int, workers: int, processes: int
):
    monkeypatch.setattr(cores, "cores", lambda: here)
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", str(workers))
    words = ("model=resnet50", "profile=paper", "data_root=.")
    assert conditions(composed(words))["workers"] == processes
    assert conditions(composed([*words, "dataset.loader.workers=3"]))["workers"] == 3
    assert identity(composed(words)) == identity(composed([*words, "dataset.loader.workers=3"]))
