"""Parameters and multiply-accumulates, by torch's own counter and by the paper's convention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pufferfish_bench.recurrent import LSTM, LowRankLSTM


def parameters(model: nn.Module) -> int:
    """All parameters, trained or frozen; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def trainable_parameters(model: nn.Module) -> int:
    """Those of `parameters` that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def macs(model: nn.Module, *example: Tensor) -> dict[str, int]:
    """Multiply-accumulates of convolutions and matrix products in one forward pass, by module; the key "" is the total."""
    counter = FlopCounterMode(display=False)
    with counter:
        forward(model, *example)
    root = type(model).__name__
    flops = {module: sum(by_operator.values()) for module, by_operator in counter.get_flop_counts().items()}
    # a multiplication and an addition are two of torch's floating point operations
    return {name: flops.get(f"{root}.{name}", 0) // 2 for name, _ in model.named_modules()} | {"": flops["Global"] // 2}


def macs_as_in_paper(model: nn.Module, *example: Tensor) -> int:
    """One forward pass as the paper's counter sees it: modules only, BatchNorm, ReLU and pooling included."""
    total = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += rule(module)(module, inputs[0], output)

    handles = [module.register_forward_hook(count) for module in model.modules() if rule(module)]
    try:
        forward(model, *example)
    finally:
        for handle in handles:
            handle.remove()
    return total


def rule(module: nn.Module) -> Callable[[nn.Module, Tensor, Tensor], int] | None:
    """How the paper's counter counts a module, if it does."""
    return next((count for kind, count in RULES.items() if isinstance(module, kind)), None)


RULES: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], int]] = {
    nn.Conv2d: lambda m, x, y: y.numel() * (m.weight[0].numel() + (m.bias is not None)),
    nn.Linear: lambda m, x, y: y.numel() * m.in_features,  # its bias is not counted
    nn.BatchNorm2d: lambda m, x, y: 2 * x.numel(),
    nn.ReLU: lambda m, x, y: y.numel(),
    nn.MaxPool2d: lambda m, x, y: x.numel(),
    nn.AdaptiveAvgPool2d: lambda m, x, y: x.numel(),
    # for each word the matrices and twelve multiplications and additions a hidden unit
    LSTM: lambda m, x, y: x[..., 0].numel() * m.hidden_size * (4 * (m.input_size + m.hidden_size) + 12),
    LowRankLSTM: lambda m, x, y: (
        x[..., 0].numel() * (m.u_ih.numel() + m.v_ih.numel() + m.u_hh.numel() + m.v_hh.numel() + 12 * m.hidden)
    ),
}


ALSO_COUNTED: dict[str, tuple[type[nn.Module], ...]] = {  # what the rules above count beside products and convolutions
    "BatchNorm": (nn.BatchNorm2d,),
    "ReLU modules": (nn.ReLU,),
    "pooling modules": (nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    "twelve operations for every hidden unit of an LSTM": (LSTM, LowRankLSTM),
}


def also_counted(model: nn.Module) -> list[str]:
    """What the paper's counter counts in a model beside convolutions and matrix products."""
    return [words for words, kinds in ALSO_COUNTED.items() if any(isinstance(module, kinds) for module in model.modules())]


def forward(model: nn.Module, *example: Tensor) -> None:
    """Run the model once and leave it as it was."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), plain_kernels():
            model(*example)
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Without the fused kernels for LSTM, attention and Transformer layers, which torch's counter takes for nothing."""
    switches = (torch.backends.mkldnn, torch.backends.cudnn)
    before, fast_path = [switch.enabled for switch in switches], torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for switch in switches:
            switch.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for switch, state in zip(switches, before, strict=True):
            switch.enabled = state
