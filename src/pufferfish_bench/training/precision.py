"""The number format of a step: full, or mixed where the device has something faster."""

import os
import subprocess
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pufferfish_bench.base.errors import InputError

# A forward and backward convolution as in training. It dies with SIGILL where the CPU announces instructions (for example AMX)
# that it cannot execute and oneDNN uses them.
BFLOAT16_CONVOLUTION = """
import torch
images = torch.randn(16, 64, 16, 16, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    torch.nn.Conv2d(64, 64, 3)(images).float().sum().backward()
"""
INSTRUCTION_SETS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # limits for oneDNN, the least restrictive first
LIMIT = "ONEDNN_MAX_CPU_ISA"


def allow_tf32(allowed: bool) -> None:
    """Whether matrix products, convolutions and recurrent layers in float32 may be computed in TF32 on CUDA.

    torch has two sets of switches. The newer one decides; torch.compile and others still read the older one, which raises an
    error if it disagrees. So both are set, the older one first, because it changes the newer one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older switches are deprecated
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
    precision = "tf32" if allowed else "ieee"
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]  # torch's stub lacks conv and rnn
    for switch in switches:
        switch.fp32_precision = precision


class FullPrecision:
    """float32 throughout; with `tf32: true`, products in TF32 (see `allow_tf32`)."""

    scales = False  # whether the loss, and so the gradients that a reducer gets, are scaled
    remedy = ""  # what else to try when the loss is not finite
    arithmetic_began = False  # in this process, which may train several runs

    def prepare(self, device: torch.device) -> None:
        """Called before a run does any arithmetic."""
        FullPrecision.arithmetic_began = True

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale of the loss."""

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class MixedPrecision(FullPrecision):
    """float16 with a scaled loss on CUDA, bfloat16 on a CPU; weights and optimizer stay in float32."""

    remedy = " or precision=fp32"

    def prepare(self, device: torch.device) -> None:
        if device.type == "cpu":
            limit_onednn(too_late=FullPrecision.arithmetic_began)
        super().prepare(device)
        self.device = device
        self.dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
        self.scales = device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.scales)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:  # empty where the run was begun on a CPU
            self.scaler.load_state_dict(state)


def limit_onednn(*, too_late: bool) -> None:
    """Keep oneDNN from instructions that would crash this process. It reads the limit only once, at its first use."""
    limit = safe_limit(BFLOAT16_CONVOLUTION)
    if limit is None or limit == os.environ.get(LIMIT):
        return
    if too_late:
        raise InputError(f"precision=amp needs {LIMIT}={limit} on this CPU before anything is trained: set it, or sweep apart")
    os.environ[LIMIT] = limit


def safe_limit(program: str) -> str | None:
    """The least restrictive limit on oneDNN with which `program` runs in its own process; None if it needs no limit."""
    inherited = os.environ.get(LIMIT)
    for limit in (inherited, *INSTRUCTION_SETS):
        environment = os.environ | ({LIMIT: limit} if limit else {})
        finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        if finished.returncode == 0:
            return limit
    raise InputError(
        f"precision=amp: a bfloat16 convolution fails on this CPU even with {LIMIT}={INSTRUCTION_SETS[-1]} "
        f"(exit code {finished.returncode}); use precision=fp32\n{finished.stderr[-500:]}".rstrip()
    )
