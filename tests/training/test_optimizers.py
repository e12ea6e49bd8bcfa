"""The fused optimizers do what torch's plain loops do, in every memory format and with state from elsewhere."""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pufferfish_bench.distributed import surgery
from pufferfish_bench.training import optimizers
from tests.support.nets import TinyNet

FORMATS = [torch.contiguous_format, torch.channels_last]
ADAM = {"betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}
MOMENTUM = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.1}
CASES: dict[str, tuple[Callable[..., Optimizer], Callable[..., Optimizer]]] = {
    "sgd": (partial(optimizers.sgd, decay_vectors=True, **MOMENTUM), partial(SGD, **MOMENTUM)),
    "nesterov": (
        partial(optimizers.sgd, decay_vectors=True, **MOMENTUM | {"nesterov": True}),
        partial(SGD, **MOMENTUM | {"nesterov": True}),
    ),
    "no momentum": (
        partial(optimizers.sgd, decay_vectors=True, **MOMENTUM | {"momentum": 0.0}),
        partial(SGD, **MOMENTUM | {"momentum": 0.0}),
    ),
    "adam": (partial(optimizers.adam, decay_vectors=True, **ADAM), partial(Adam, **ADAM)),
    "adamw": (partial(optimizers.adamw, decay_vectors=True, **ADAM), partial(AdamW, **ADAM)),
}


def net(memory_format: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    return TinyNet().to(memory_format=memory_format)


def step(model: nn.Module, optimizer: Optimizer, seed: int, *, without: str = "") -> None:
    """A step with random gradients, which the backward pass gives the strides of their parameters."""
    random = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + seed)
    given = {name: torch.randn(p.shape, generator=random) for name, p in model.named_parameters()}
    sum((p * given[name]).sum() for name, p in model.named_parameters() if name != without).backward()
    optimizer.step()


def loaded(model: nn.Module, optimizer: Optimizer, state: dict[str, dict[str, Any]]) -> None:
    """Give the optimizer the state that a surgery computed."""
    surgery.load_optimizer_state(SimpleNamespace(model=model, optimizer=optimizer), state)  # all that it reads of a run


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_an_optimizer_equals_torchs_plain_loop_although_a_parameter_gets_its_first_gradient_late(
    name: str, memory_format: torch.memory_format
):
    ours, theirs = net(memory_format), net(torch.contiguous_format)
    one, other = CASES[name][0](ours), CASES[name][1](theirs.parameters(), lr=0.1, foreach=False)
    for seed in range(5):
        for model, optimizer in ((ours, one), (theirs, other)):
            step(model, optimizer, seed, without="" if seed in (2, 4) else "conv2.weight")
        torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("momenta_format", FORMATS)
def test_state_from_a_surgery_is_used_whatever_its_memory_format(
    name: str, memory_format: torch.memory_format, momenta_format: torch.memory_format
):
    models = [net(memory_format), net(torch.contiguous_format)]
    found = []
    for model, create in zip(models, CASES[name], strict=True):
        optimizer = create(model) if model is models[0] else create(model.parameters(), lr=0.1, foreach=False)
        random = torch.Generator().manual_seed(1)
        state = {}
        for key, parameter in list(model.named_parameters())[::2]:  # the others start without
            tensors = {"momentum_buffer"} if name == "sgd" else {"exp_avg", "exp_avg_sq"}
            state[key] = {kind: torch.rand(parameter.shape, generator=random) for kind in sorted(tensors)}
            if parameter.ndim == 4:
                state[key] = {kind: value.to(memory_format=momenta_format) for kind, value in state[key].items()}
            if name != "sgd":
                state[key]["step"] = torch.tensor(3.0)
        loaded(model, optimizer, state)
        for seed in range(3):
            step(model, optimizer, seed)
        found.append(model.state_dict())
    torch.testing.assert_close(dict(found[0]), dict(found[1]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("saved_format", FORMATS)
def test_a_resumed_optimizer_continues_to_the_same_bits_and_in_the_parameters_own_memory_format(
    name: str, memory_format: torch.memory_format, saved_format: torch.memory_format
):
    whole, stopped = net(memory_format), net(saved_format)
    one, other = CASES[name][0](whole), CASES[name][0](stopped)
    for seed in range(2):
        step(whole, one, seed)
        step(stopped, other, seed)
    resumed = net(memory_format)
    resumed.load_state_dict(stopped.state_dict())
    new = CASES[name][0](resumed)
    new.load_state_dict(copy.deepcopy(other.state_dict()))
    for group, fresh in zip(new.param_groups, one.param_groups, strict=True):
        assert all(group[key] == fresh[key] for key in optimizers.IMPLEMENTATION)
    for seed in range(2, 4):
        step(whole, one, seed)
        step(resumed, new, seed)
    same = torch.equal if memory_format == saved_format else partial(torch.allclose, atol=1e-6)
    assert all(same(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_sgd_is_fused_only_where_that_copies_no_parameter():
    fused = [CASES["sgd"][0](net(memory_format)).defaults["fused"] for memory_format in FORMATS]
    assert fused == [True, False]


def test_a_first_step_that_amp_skips_leaves_a_momentum_of_zero():
    model = net(torch.contiguous_format)
    optimizer = CASES["sgd"][0](model)
    before = copy.deepcopy(model.state_dict())
    optimizer.found_inf = torch.tensor(1.0)  # as torch's loss scaler sets it when a gradient is infinite
    step(model, optimizer, 0)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert not any(state["momentum_buffer"].any() for state in optimizer.state.values())


def test_the_step_count_of_a_checkpoint_by_another_implementation_is_loaded_in_the_fused_format():
    model = net(torch.contiguous_format)
    saved = Adam(model.parameters(), lr=0.1, fused=None, **ADAM)
    step(model, saved, 0)
    state = copy.deepcopy(saved.state_dict())
    for values in state["state"].values():
        values["step"] = values["step"].double()
    optimizer = optimizers.adam(model, decay_vectors=True, **ADAM)
    optimizer.load_state_dict(state)
    assert {values["step"].dtype for values in optimizer.state.values()} == {torch.float32}
