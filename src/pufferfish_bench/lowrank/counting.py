"""Counts parameters and multiply-accumulates (MACs), with torch's own counter and by the paper's convention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pufferfish_bench.lowrank.lstm import LSTM, LowRankLSTM

Rule = Callable[[Any, Tensor, Tensor], int]  # (module, input, output) -> MACs


def parameters(model: nn.Module) -> int:
    """All parameters, trained or frozen; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def trainable_parameters(model: nn.Module) -> int:
    """Parameters that are trained; a shared tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def buffers(model: nn.Module) -> int:
    """The numbers that a state dict has besides the parameters: the statistics and counters of BatchNorm, for example."""
    kept = model.state_dict(keep_vars=True).values()
    return sum(tensor.numel() for tensor in kept if not isinstance(tensor, nn.Parameter))


def macs(model: nn.Module, *example: Tensor) -> dict[str, int]:
    """MACs of convolutions and matrix products in one forward pass, by module name; the key "" is the total."""
    counter = FlopCounterMode(display=False)
    with counter:
        forward(model, *example)
    root = type(model).__name__
    flops = {module: sum(by_operator.values()) for module, by_operator in counter.get_flop_counts().items()}
    # torch counts a multiplication and an addition as two operations
    return {name: flops.get(f"{root}.{name}", 0) // 2 for name, _ in model.named_modules()} | {"": flops["Global"] // 2}


def macs_as_in_paper(model: nn.Module, *example: Tensor) -> int:
    """MACs of one forward pass as the paper counts them: by module, with BatchNorm, ReLU and pooling."""
    total = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if (rule := rule_for(module)) is not None:
            total += rule(module, inputs[0], output)

    handles = [module.register_forward_hook(count) for module in model.modules() if rule_for(module)]
    try:
        forward(model, *example)
    finally:
        for handle in handles:
            handle.remove()
    return total


def rule_for(module: nn.Module) -> Rule | None:
    """How the paper counts a module; None if it does not."""
    return next((count for kind, count in RULES.items() if isinstance(module, kind)), None)


RULES: dict[type[nn.Module], Rule] = {
    nn.Conv2d: lambda m, x, y: y.numel() * (m.weight[0].numel() + (m.bias is not None)),
    nn.Linear: lambda m, x, y: y.numel() * m.in_features,  # its bias is not counted
    nn.BatchNorm2d: lambda m, x, y: 2 * x.numel(),
    nn.ReLU: lambda m, x, y: y.numel(),
    nn.MaxPool2d: lambda m, x, y: x.numel(),
    nn.AdaptiveAvgPool2d: lambda m, x, y: x.numel(),
    # for each token the matrices, and twelve operations per hidden unit
    LSTM: lambda m, x, y: x[..., 0].numel() * m.hidden_size * (4 * (m.input_size + m.hidden_size) + 12),
    LowRankLSTM: lambda m, x, y: (
        x[..., 0].numel() * (m.u_ih.numel() + m.v_ih.numel() + m.u_hh.numel() + m.v_hh.numel() + 12 * m.hidden)
    ),
}


def seen_by_paper(model: nn.Module) -> bool:
    """Whether the paper's rules cover all layers with weights; look-ups cost nothing."""
    lookups = (nn.Embedding, nn.EmbeddingBag)
    weighted = (module for module in model.modules() if any(p.ndim > 1 for p in module.parameters(recurse=False)))
    return all(isinstance(module, lookups) or rule_for(module) for module in weighted)


ALSO_COUNTED: dict[str, tuple[type[nn.Module], ...]] = {  # what the rules above count besides matrix products and convolutions
    "BatchNorm": (nn.BatchNorm2d,),
    "ReLU modules": (nn.ReLU,),
    "pooling modules": (nn.MaxPool2d, nn.AdaptiveAvgPool2d),
    "twelve operations for every hidden unit of an LSTM": (LSTM, LowRankLSTM),
}


def also_counted(model: nn.Module) -> list[str]:
    """What the paper counts in a model besides convolutions and matrix products."""
    return [words for words, kinds in ALSO_COUNTED.items() if any(isinstance(module, kinds) for module in model.modules())]


def forward(model: nn.Module, *example: Tensor) -> None:
    """Run the model once, in evaluation mode, and restore its mode."""
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
    """Disable the fused kernels for LSTM, attention and Transformer layers, which torch's counter counts as zero."""
    switches: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
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
