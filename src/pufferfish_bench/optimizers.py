"""Optimizers over a model's present parameters; the learning rate is set by the schedule before every step."""

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW

from pufferfish_bench.limits import Decay, NonNegative, Positive


def sgd(model: nn.Module, *, momentum: Decay, nesterov: bool, weight_decay: NonNegative, decay_vectors: bool) -> SGD:
    """SGD; `decay_vectors: false` exempts 1-D tensors (norm scales and biases) from weight decay."""
    groups = parameter_groups(model, decay_vectors)
    return SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def adam(
    model: nn.Module, *, betas: tuple[Decay, Decay], eps: Positive, weight_decay: NonNegative, decay_vectors: bool
) -> Adam:  # fmt: skip
    """Adam with weight decay as a part of the gradient; `decay_vectors` as in `sgd`."""
    return Adam(parameter_groups(model, decay_vectors), lr=0.0, betas=tuple(betas), eps=eps, weight_decay=weight_decay)


def adamw(
    model: nn.Module, *, betas: tuple[Decay, Decay], eps: Positive, weight_decay: NonNegative, decay_vectors: bool
) -> AdamW:  # fmt: skip
    """Adam with weight decay apart from the gradient; `decay_vectors` as in `sgd`."""
    return AdamW(parameter_groups(model, decay_vectors), lr=0.0, betas=tuple(betas), eps=eps, weight_decay=weight_decay)


def parameter_groups(model: nn.Module, decay_vectors: bool) -> list[dict[str, Any]]:
    """All parameters; those of one dimension in a group without weight decay, unless `decay_vectors`."""
    matrices = [p for p in model.parameters() if p.ndim > 1 or decay_vectors]
    vectors = [p for p in model.parameters() if p.ndim <= 1 and not decay_vectors]
    return [{"params": matrices}] + [{"params": vectors, "weight_decay": 0.0}] * bool(vectors)
