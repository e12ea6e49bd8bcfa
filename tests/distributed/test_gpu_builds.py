"""A GPU that this build of torch has no code for is refused before anything runs."""

from types import SimpleNamespace

import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed import gpu_builds, world

FOR_CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
FOR_CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((7, 0), FOR_CUDA_12_6, True),
        ((7, 0), FOR_CUDA_13, False),  # code for 7.5 does not run on 7.0
        ((7, 5), ["sm_70"], True),
        ((8, 9), FOR_CUDA_13, True),  # with code for 8.6
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((12, 1), FOR_CUDA_13, True),
        ((13, 0), FOR_CUDA_13, True),  # compiled from compute_120
        ((10, 0), ["compute_120"], False),
        ((8, 0), [], False),
    ],
)
def test_which_builds_have_code_for_a_gpu(capability: tuple[int, int], built_for: list[str], runs: bool):
    assert gpu_builds.runs(capability, built_for) is runs


@pytest.fixture
def v100(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch as it would answer on a machine with a V100."""
    build = SimpleNamespace(archs=FOR_CUDA_13)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: build.archs)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return build


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_v100_with_a_build_for_cuda_13_is_told_which_build_it_needs(v100: SimpleNamespace, device: str):
    with pytest.raises(InputError, match=r"no code for Tesla V100-SXM2-16GB \(sm_70\), only for sm_75.*CUDA 12.6.*device=cpu"):
        world.join(device, timeout=1.0, warn_after=0)
    assert world.join("cpu", timeout=1.0, warn_after=0).device.type == "cpu"
    v100.archs = FOR_CUDA_12_6
    assert world.join(device, timeout=1.0, warn_after=0).device.type == "cuda"


def test_a_gpu_newer_than_the_build_is_told_to_get_a_newer_build():
    assert "newer CUDA version" in gpu_builds.advice("a GPU", (13, 0), "2.13.0", ["sm_90"])


def test_the_meta_device_is_for_tests_and_not_accepted_from_users():
    with pytest.raises(InputError, match="device=meta is not known; allowed: auto, cpu, cuda"):
        world.join("meta", timeout=1.0, warn_after=0)
