"""Optimizers over a model's present parameters; the learning rate is set by the schedule before every step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Decay, NonNegative, Positive


def sgd(model: nn.Module, *, momentum: Decay, nesterov: bool, weight_decay: NonNegative, decay_vectors: bool) -> SGD:
    """SGD; `decay_vectors: false` exempts 1-D tensors (norm scales and biases) from weight decay."""
    groups = parameter_groups(model, decay_vectors)
    return SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


def powersgd_momentum(model: nn.Module, *, momentum: Decay, weight_decay: NonNegative, decay_vectors: bool) -> "PowerSGDMomentum":
    """SGD with PowerSGD's momentum; `decay_vectors` as in `sgd`."""
    if not 0 < momentum < 1:
        raise InputError(
            f"optimizer.momentum={momentum} must be above 0 and below 1 with optimizer=powersgd_momentum, where the gradient is "
            "added to its momentum; use optimizer=sgd"
        )
    return PowerSGDMomentum(parameter_groups(model, decay_vectors), lr=0.0, momentum=momentum, weight_decay=weight_decay)


class PowerSGDMomentum(SGD):
    """SGD whose step is the gradient plus its momentum: m = momentum * m + g, then p = p - lr * (g + m).

    Algorithm 2 of Vogels et al. (2019). In torch's Nesterov the step is g + momentum * m. Weight decay is part of g.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
            momenta = [self.momentum_of(parameter) for parameter in parameters]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, gradients)
            for part in (gradients, momenta):
                torch._foreach_add_(parameters, part, alpha=-group["lr"])
        return loss

    def momentum_of(self, parameter: Tensor) -> Tensor:
        """Under the name that SGD has for it, so that all that knows SGD's state knows this one."""
        state = self.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]


def adam(
    model: nn.Module, *, betas: tuple[Decay, Decay], eps: Positive, weight_decay: NonNegative, decay_vectors: bool
) -> Adam:  # fmt: skip
    """Adam with weight decay as a part of the gradient; `decay_vectors` as in `sgd`."""
    return Adam(parameter_groups(model, decay_vectors), lr=0.0, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay)


def adamw(
    model: nn.Module, *, betas: tuple[Decay, Decay], eps: Positive, weight_decay: NonNegative, decay_vectors: bool
) -> AdamW:  # fmt: skip
    """Adam with weight decay apart from the gradient; `decay_vectors` as in `sgd`."""
    return AdamW(parameter_groups(model, decay_vectors), lr=0.0, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay)


def parameter_groups(model: nn.Module, decay_vectors: bool) -> list[dict[str, Any]]:
    """All parameters; those of one dimension in a group without weight decay, unless `decay_vectors`."""
    matrices = [p for p in model.parameters() if p.ndim > 1 or decay_vectors]
    vectors = [p for p in model.parameters() if p.ndim <= 1 and not decay_vectors]
    return [{"params": matrices}] + [{"params": vectors, "weight_decay": 0.0}] * bool(vectors)
