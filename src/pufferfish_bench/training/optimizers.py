"""Optimizers over a model's present parameters; the learning rate is set by the schedule before every step.

torch's fused kernels are used where they are the fastest. They assume that a parameter, its gradient and its state have the same
strides, and give wrong numbers without an error if they have not: state that is loaded is brought into the parameter's strides.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Decay, NonNegative, Positive

IMPLEMENTATION = ("fused", "foreach")  # settings of a parameter group that choose how a step is computed, not what


def sgd(model: nn.Module, *, momentum: Decay, nesterov: bool, weight_decay: NonNegative, decay_vectors: bool) -> SGD:
    """SGD; `decay_vectors: false` exempts 1-D tensors (norm scales and biases) from weight decay."""
    # On a CPU, the fused kernel of torch 2.13 copies every parameter that is not contiguous.
    fused = all(parameter.is_cuda or parameter.is_contiguous() for parameter in model.parameters())
    how = {"fused": fused, "foreach": False}
    groups = parameter_groups(model, decay_vectors)
    optimizer = SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, **how)
    optimizer.register_step_pre_hook(add_missing_momenta)
    return ready_to_load(optimizer)


def powersgd_momentum(model: nn.Module, *, momentum: Decay, weight_decay: NonNegative, decay_vectors: bool) -> "PowerSGDMomentum":
    """SGD with PowerSGD's momentum; `decay_vectors` as in `sgd`."""
    if not 0 < momentum < 1:
        raise InputError(
            f"optimizer.momentum={momentum} must be above 0 and below 1 with optimizer=powersgd_momentum, where the gradient is "
            "added to its momentum; use optimizer=sgd"
        )
    groups = parameter_groups(model, decay_vectors)
    return ready_to_load(PowerSGDMomentum(groups, lr=0.0, momentum=momentum, weight_decay=weight_decay))


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
    groups = parameter_groups(model, decay_vectors)
    return ready_to_load(Adam(groups, lr=0.0, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True))


def adamw(
    model: nn.Module, *, betas: tuple[Decay, Decay], eps: Positive, weight_decay: NonNegative, decay_vectors: bool
) -> AdamW:  # fmt: skip
    """Adam with weight decay apart from the gradient; `decay_vectors` as in `sgd`."""
    groups = parameter_groups(model, decay_vectors)
    return ready_to_load(AdamW(groups, lr=0.0, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True))


def parameter_groups(model: nn.Module, decay_vectors: bool) -> list[dict[str, Any]]:
    """All parameters; those of one dimension in a group without weight decay, unless `decay_vectors`."""
    matrices = [p for p in model.parameters() if p.ndim > 1 or decay_vectors]
    vectors = [p for p in model.parameters() if p.ndim <= 1 and not decay_vectors]
    return [{"params": matrices}] + [{"params": vectors, "weight_decay": 0.0}] * bool(vectors)


Some = TypeVar("Some", bound=Optimizer)


def ready_to_load(optimizer: Some) -> Some:
    """The optimizer; state that it loads gets the strides of the parameters, and its implementation stays its own."""

    def loaded(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group.update({key: optimizer.defaults[key] for key in IMPLEMENTATION})  # chosen for this device and memory format
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if not isinstance(value, Tensor):
                    continue
                if name == "step":  # torch leaves it on the CPU if the checkpoint was saved by another implementation
                    state[name] = value.to(parameter.device, torch.float32)
                elif value.shape == parameter.shape and value.stride() != parameter.stride():
                    state[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)

    optimizer.register_load_state_dict_post_hook(loaded)
    return optimizer


def add_missing_momenta(optimizer: Optimizer, *_: Any) -> None:
    """Let a momentum start from zero, which is the same as from the first gradient.

    SGD's fused kernel cannot do a step in which only some parameters have one (after a surgery, or when one gets its first
    gradient late), and it starts from memory that is not initialised if AMP's loss scaler skips the first step.
    """
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"]:
            for parameter in group["params"]:
                if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
