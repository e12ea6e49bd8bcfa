"""SwitchToLowRank in a plain loop and in a DistributedDataParallel loop of two processes."""

import copy
import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import LowRank
from pufferfish_bench.lowrank import switch as switch_module
from tests.support.nets import TinyNet
from tests.support.torchrun import RANKS, run_ranks

SAMPLE = [torch.zeros(1, 3, 8, 8)]
CHOICE: dict[str, Any] = {"keep": ["conv1", "fc2"], "first": None, "rank_ratio": 0.5}


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 8, 8, generator=generator)
    return images, images.mean((2, 3)).argmax(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> float:
    images, labels = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_a_plain_loop_switches_once_and_goes_on_learning():
    torch.manual_seed(0)
    model = TinyNet()
    model.drop.p = 0.0
    optimizer: torch.optim.Optimizer = sgd(model)
    switch = lowrank.SwitchToLowRank(model, epoch=2, sample=SAMPLE, first=None)
    losses, switched = [], []
    for epoch in range(6):
        losses.append(train(model, optimizer))
        if groups := switch(optimizer):
            optimizer = switch.carry(torch.optim.SGD(groups))
            switched.append(epoch)
            assert not optimizer.state
    assert switched == [1]
    factored = {name for name, module in model.named_modules() if isinstance(module, LowRank)}
    assert factored == switch.choice.ranks.keys() == switch.done.keys() == {"conv2", "fc1"}
    assert switch.choice.left.keys() == {"conv1", "fc2"}
    assert losses[5] < 0.7 * losses[2] < losses[0]
    learned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert learned == {id(p) for p in model.parameters()}


def test_a_factor_is_in_the_group_of_its_weight_and_a_bias_in_its_own_with_all_settings():
    model = TinyNet()
    model.attention = nn.MultiheadAttention(8, 2)
    model.lstm = nn.LSTM(8, 8)
    names = dict(model.named_parameters())
    own = {"fc1.weight", "attention.in_proj_weight", "lstm.weight_hh_l0"}
    settings = [{"lr": 0.3, "weight_decay": 0.0}, {"lr": 0.2, "momentum": 0.5, "nesterov": True}, {"lr": 0.1, "name": "mine"}]
    members = [
        {name for name in names if "bias" in name}, own,
        {name for name in names if "bias" not in name and name not in own and not name.startswith("norm")},
    ]  # fmt: skip
    groups = [{"params": [names[name] for name in chosen], **own} for chosen, own in zip(members, settings, strict=True)]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, weight_decay=0.01)
    before = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    switch = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE)
    found = switch(optimizer)
    assert found is not None
    assert [{key: value for key, value in group.items() if key != "params"} for group in found] == before
    after = {id(parameter): name for name, parameter in model.named_parameters()}
    decided = [{after[id(parameter)] for parameter in group["params"]} for group in found]
    projections = {f"attention.{name}_proj.{factor}.weight" for name in "qkv" for factor in "uv"}
    assert decided[1] == {"fc1.u.weight", "fc1.v.weight", "lstm.cells.0.u_hh", "lstm.cells.0.v_hh"} | projections
    assert decided[0] == {name for name in after.values() if "bias" in name}
    outside = {"norm.weight"}
    assert decided[2] == set(after.values()) - decided[0] - decided[1] - outside
    assert [group["lr"] for group in torch.optim.SGD(found).param_groups] == [0.3, 0.2, 0.1]


@pytest.mark.parametrize("before", [True, False])  # whether the schedule takes its step before the switch
@pytest.mark.parametrize(
    "kind",
    [
        partial(lr_scheduler.StepLR, step_size=3, gamma=0.5),
        partial(lr_scheduler.CosineAnnealingLR, T_max=8),
        partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
        partial(lr_scheduler.LinearLR, start_factor=0.2, total_iters=6),
        partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=9),
    ],
)
@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_the_documented_schedule_gives_the_learning_rates_of_training_without_a_switch(
    epoch: int, kind: Callable[..., lr_scheduler.LRScheduler], before: bool
):
    found = re.search(
        r"(    if groups := switch\(optimizer\):\n        rates.*?)\n\n", switch_module.__doc__ or "", flags=re.DOTALL
    )
    assert found
    snippet = textwrap.dedent(found[1])
    built = "torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)"
    assert built in snippet

    def rates(switched: bool) -> list[float]:
        model = TinyNet()
        names: dict[str, Any] = {"torch": torch, "build": kind, "optimizer": sgd(model)}
        names["switch"] = lowrank.SwitchToLowRank(model, epoch=epoch, **CHOICE)
        names["scheduler"] = kind(names["optimizer"])
        seen = []
        for _ in range(8):
            seen.append(names["optimizer"].param_groups[0]["lr"])
            names["optimizer"].step()
            if before:
                names["scheduler"].step()
            if switched:
                exec(snippet.replace(built, "build(optimizer)"), names)
            if not before:
                names["scheduler"].step()
        assert bool(names["switch"].done) == switched
        return seen

    assert rates(switched=True) == rates(switched=False)


def test_carried_momentum_is_the_chain_rule_of_the_old_one():
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = sgd(model)
    train(model, optimizer)
    old = {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in model.named_parameters()}
    switch = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE, carry_momentum=True)
    new = switch.carry(torch.optim.SGD(switch(optimizer)))
    found = {name: new.state[p]["momentum_buffer"] for name, p in model.named_parameters()}
    for name in ("conv2", "fc1"):
        u, v = lowrank.chain_rule(old[f"{name}.weight"], model.get_submodule(name))
        assert torch.equal(found[f"{name}.u.weight"], u)
        assert torch.equal(found[f"{name}.v.weight"], v)
    assert torch.equal(found["fc1.v.bias"], old["fc1.bias"])
    for name in ("conv1.weight", "norm.bias", "fc2.weight"):
        assert torch.equal(found[name], old[name])


def test_the_switch_does_what_factorise_does():
    torch.manual_seed(0)
    model = TinyNet()
    plain = copy.deepcopy(model)
    switch = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE, ranks={"fc1": 5})
    switch(sgd(model))
    lowrank.factorise(plain, lowrank.choose(plain, **CHOICE, ranks={"fc1": 5}).ranks)
    assert model.fc1.u.out_features == 5
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in model.state_dict().items())


class Attentive(nn.Module):
    """Its factors come in another order in the groups of an optimizer than in `parameters()`."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = images.mean(1)
        return self.head(self.lstm(self.attention(x, x, x)[0])[0][:, -1])


@pytest.mark.parametrize("stop", [1, 2, 3, 4])  # before the switch, at it, and after it
@pytest.mark.parametrize("kind", [TinyNet, Attentive])
def test_a_resumed_loop_ends_with_the_same_weights_as_one_without_interruption(kind: type, stop: int, tmp_path: Path):
    keep = ["conv1", "fc2"] if kind is TinyNet else ["head"]

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, lowrank.SwitchToLowRank]:
        torch.manual_seed(0)
        model = kind()
        return model, sgd(model), lowrank.SwitchToLowRank(model, epoch=2, keep=keep, first=None, rank_ratio=0.5)

    def loop(resume: bool) -> nn.Module:
        model, optimizer, switch = begin()
        for epoch in range(1, 5):
            torch.manual_seed(epoch)
            train(model, optimizer, steps=2)
            if groups := switch(optimizer):
                optimizer = torch.optim.SGD(groups)
            if resume and epoch == stop:
                states = {"switch": switch, "model": model, "optimizer": optimizer}
                torch.save({name: each.state_dict() for name, each in states.items()}, tmp_path / "saved.pt")
                saved = torch.load(tmp_path / "saved.pt")
                model, optimizer, switch = begin()
                before = torch.get_rng_state()
                if groups := switch.load_state_dict(saved["switch"], optimizer):
                    optimizer = torch.optim.SGD(groups)
                assert (groups is not None) == (stop >= 2)
                assert torch.equal(torch.get_rng_state(), before)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                assert switch.state_dict() == saved["switch"]
        assert switch.epochs == 4
        assert switch.done.keys() == switch.choice.ranks.keys()
        return model

    expected = loop(resume=False).state_dict()
    found = loop(resume=True).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_a_model_that_is_switched_already_is_not_loaded_into():
    model = TinyNet()
    switch = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE)
    optimizer = sgd(model)
    switch(optimizer)
    with pytest.raises(InputError, match="the model is switched already"):
        switch.load_state_dict(switch.state_dict(), optimizer)


def test_a_model_with_nothing_to_factorise_is_refused_with_the_reasons():
    with pytest.raises(InputError, match=r"leave no layer to factorise \(0: the first weight layer; 1: "):
        lowrank.SwitchToLowRank(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), epoch=1, sample=[torch.zeros(1, 8)])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epoch": 1}, r"need sample=\[\.\.\.\]"),
        (
            {"epoch": 1, "sample": [torch.zeros(1, 3, 9)]},
            r"the model fails on the sample, 1x3x9 \(RuntimeError: .*\): sample must hold the arguments of one forward pass",
        ),
        ({"epoch": 1, "sample": SAMPLE * 2, **CHOICE}, r"the model fails on the sample, 1x3x8x8 and 1x3x8x8 \(TypeError: "),
        ({"epoch": 0, **CHOICE}, "epoch=0 must be an integer of at least 1"),
        ({"epoch": True, **CHOICE}, "epoch=True must be an integer"),
        ({"epoch": 1, **CHOICE, "rank_ratio": 2}, "rank_ratio=2 is outside"),
        ({"epoch": 1, **CHOICE, "keep": ["conv9"]}, "'conv9' in low_rank matches no layer"),
        ({"epoch": 1, **CHOICE, "carry_momentum": True}, r"does not work with LSTM layers \(lstm\)"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_training(settings: dict, words: str):
    model = TinyNet()
    model.lstm = nn.LSTM(8, 8)
    with pytest.raises(InputError, match=words):
        lowrank.SwitchToLowRank(model, **settings)


def test_other_optimizers_than_sgd_work_without_momentum_and_are_refused_with_it():
    model = TinyNet()
    switch = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE, carry_momentum=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="works with SGD, not with AdamW"):
        switch(torch.optim.AdamW(model.parameters()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    groups = lowrank.SwitchToLowRank(model, epoch=1, **CHOICE)(torch.optim.AdamW(model.named_parameters(), betas=(0.5, 0.6)))
    assert groups is not None
    assert groups[0]["betas"] == (0.5, 0.6)
    assert "param_names" not in groups[0]  # names of the old parameters
    train(model, torch.optim.AdamW(groups))


def test_a_model_wrapped_in_ddp_is_refused(tmp_path: Path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match=r"pass model\.module"):
            lowrank.SwitchToLowRank(DistributedDataParallel(TinyNet()), epoch=1, **CHOICE)
    finally:
        torch.distributed.destroy_process_group()


def test_a_ddp_loop_of_two_processes_has_the_same_factors_momentum_and_weights_and_fails_together(tmp_path: Path):
    done = run_ranks(tmp_path, "tests.support.switch_ranks", str(tmp_path))
    assert done.returncode == 0, done.stderr
    one, other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(RANKS))
    assert one["state"].keys() == other["state"].keys() >= {"2.u.weight", "2.v.weight", "2.v.bias"}
    assert all(torch.equal(tensor, other["state"][name]) for name, tensor in one["state"].items())
    assert all(map(torch.equal, one["carried"], other["carried"]))
    assert one["done"] == other["done"]
    for rank in (one, other):
        assert rank["losses"][-1] < rank["losses"][2] < rank["losses"][0]
    sent, received = (torch.load(tmp_path / f"unequal{rank}.pt") for rank in range(RANKS))
    assert len(sent) == 3 + 5 + 4 * 3
    assert all(torch.equal(tensor, received[name]) for name, tensor in sent.items())
    assert "diverged" in (tmp_path / "failed0").read_text()
    assert (tmp_path / "failed1").read_text() == (tmp_path / "failed0").read_text()
