"""Whether this build of torch has code for a GPU. Otherwise its first kernel would fail with "no kernel image is available"."""

import re
from collections.abc import Sequence

import torch

from pufferfish_bench.base.errors import InputError

Capability = tuple[int, int]

BEFORE_TURING = (7, 5)  # GPUs with a lower capability, a V100 for example, need a build for CUDA 12.6


def check(device: torch.device) -> None:
    """An InputError if this build has no code for the GPU."""
    capability = torch.cuda.get_device_capability(device)
    if not runs(capability, torch.cuda.get_arch_list()):
        raise InputError(advice(torch.cuda.get_device_name(device), capability, torch.__version__, torch.cuda.get_arch_list()))


def runs(capability: Capability, built_for: Sequence[str]) -> bool:
    """Whether a GPU can run code that was built for these architectures, in the words of `torch.cuda.get_arch_list`.

    Machine code (sm_80) runs on GPUs of the same major version from its minor version on, that of sm_90a only on 9.0 itself;
    intermediate code (compute_90) is compiled for all later ones.
    """
    for kind, major, minor, exact in re.findall(r"(sm|compute)_(\d+)(\d)([a-z]?)", " ".join(built_for)):
        built = (int(major), int(minor))
        if built == capability or (not exact and built < capability and (kind == "compute" or built[0] == capability[0])):
            return True
    return False


def advice(name: str, capability: Capability, version: str, built_for: Sequence[str]) -> str:
    """What to say about a GPU that this build has no code for."""
    major, minor = capability
    old = capability < BEFORE_TURING
    other = "only the build of torch for CUDA 12.6 has: install that" if old else "install the build for a newer CUDA version"
    return (
        f"torch {version} has no code for {name} (sm_{major}{minor}), only for {', '.join(built_for) or 'no GPU'}; {other} "
        "(docs/troubleshooting.md), or use device=cpu"
    )
