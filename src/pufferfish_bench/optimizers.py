"""Optimizers over a model's present parameters; the learning rate is set by the schedule before every step."""

from torch import nn
from torch.optim import SGD, Adam


def sgd(model: nn.Module, *, momentum: float, nesterov: bool, weight_decay: float, decay_vectors: bool) -> SGD:
    """SGD; `decay_vectors: false` exempts 1-D tensors (norm scales and biases) from weight decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1 or decay_vectors]
    vectors = [p for p in model.parameters() if p.ndim <= 1 and not decay_vectors]
    groups = [{"params": matrices}] + [{"params": vectors, "weight_decay": 0.0}] * bool(vectors)
    return SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def adam(model: nn.Module, *, betas: tuple[float, float], eps: float) -> Adam:
    """Adam without weight decay."""
    return Adam(model.parameters(), lr=0.0, betas=tuple(betas), eps=eps)
