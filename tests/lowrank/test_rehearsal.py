"""Code that reads its layers' attributes or weights: it goes on working, or the model is refused before training."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pufferfish_bench.models.torchvision_import  # noqa: F401  (before torchvision)
from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import describe
from pufferfish_bench.lowrank import auto, counting
from pufferfish_bench.lowrank.lstm import LSTM
from tests.support.commands import Command
from tests.support.nets import TinyNet

SAMPLE = [torch.zeros(1, 3, 8, 8)]
EXPLICIT: dict[str, Any] = {"keep": [], "first": None, "rank_ratio": 0.5}
LINEAR, LSTMS = ("in_features", "out_features"), nn.LSTM.__constants__
CONVOLUTION = (*nn.Conv2d.__constants__, "transposed")
ATTENTION = (
    "embed_dim", "num_heads", "head_dim", "kdim", "vdim", "dropout", "batch_first", "add_zero_attn", "bias_k", "q_proj_weight",
)  # fmt: skip


def conv1d(out: int, inputs: int) -> nn.Module:
    return pytest.importorskip("transformers").pytorch_utils.Conv1D(out, inputs)


DENSE = {
    "linear": (lambda: nn.Linear(6, 9), LINEAR),
    "conv1d": (lambda: nn.Conv1d(6, 9, 3, stride=2, padding=1), CONVOLUTION),
    "conv2d": (lambda: nn.Conv2d(6, 9, (3, 1), stride=(2, 1), padding="valid", dilation=(1, 2)), CONVOLUTION),
    "conv3d": (lambda: nn.Conv3d(6, 9, 3, padding=1, padding_mode="circular", bias=False), CONVOLUTION),
    "hugging face": (lambda: conv1d(9, 6), ("nx", "nf")),
    "lstm stack": (lambda: nn.LSTM(6, 5, 2, batch_first=True, dropout=0.5, bidirectional=True), LSTMS),
    "lstm": (lambda: LSTM(6, 5), [name for name in LSTMS if name != "bias"]),  # whose name its parameter has
    "attention": (lambda: nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), ATTENTION),
    "attention of other sizes": (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_zero_attn=True), ATTENTION[:-1]),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_low_rank_layer_has_the_sizes_and_settings_of_the_dense_one(name: str):
    build, attributes = DENSE[name]
    dense = build()
    factored = lowrank.random_factors(dense, 2)
    assert {each: getattr(factored, each) for each in attributes} == {each: getattr(dense, each) for each in attributes}


def test_every_kind_is_among_them_and_a_linear_layer_has_no_kernel():
    kinds = {type(lowrank.kinds.kind_of(build())) for build, _ in DENSE.values()}
    assert kinds == {type(kind) for kind in lowrank.kinds.ALL}
    factored = lowrank.random_factors(nn.Linear(6, 9), 2)
    assert not hasattr(factored, "kernel_size")
    assert not hasattr(lowrank.random_factors(nn.Conv2d(6, 9, 3), 2), "in_features")


class Reader(TinyNet):
    """Reads what a layer of every kind has, of one layer."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + 0 * (self.conv2.out_channels + self.conv2.stride[0] + self.fc1.in_features)


class Indexing(TinyNet):
    """Reads what only a dense layer has."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.fc2 = nn.Linear(12, classes)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * self.fc1.__constants__.index("in_features").__add__(1)


class Functional(TinyNet):
    """Passes a weight to a function instead of calling the layer, as Swin does; and has a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(30, 30)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv2(self.norm(self.conv1(images)).relu()).flatten(1)
        return self.fc2(nn.functional.linear(x, self.fc1.weight, self.fc1.bias).relu())


def test_a_net_that_reads_sizes_works_after_the_switch():
    model = Reader().eval()
    ranks = lowrank.choose(model, **EXPLICIT).ranks
    assert lowrank.rehearse(model, ranks, SAMPLE) is None
    lowrank.factorise(model, ranks)
    assert model(SAMPLE[0]).shape == (1, 4)


@pytest.mark.parametrize("kind", [Indexing, Functional])
def test_a_rehearsal_leaves_the_model_and_the_random_numbers_as_they_were(kind: type):
    model = kind().train()
    model.drop.eval()
    layers, modes = dict(model.named_modules()), [module.training for module in model.modules()]
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    try:
        lowrank.rehearse(model, lowrank.choose(model, **EXPLICIT).ranks, SAMPLE)
    except InputError:
        assert kind is Indexing
    assert torch.equal(torch.get_rng_state(), random)
    assert [*dict(model.named_modules()).items()] == [*layers.items()]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_net_that_needs_a_dense_layer_is_refused_with_the_layer_and_the_error():
    model = Indexing()
    words = (
        r"fails with low-rank layers in place of fc1 \(AttributeError: .*__constants__.*\): .* name these layers in low_rank.keep"
    )
    with pytest.raises(InputError, match=words):
        lowrank.rehearse(model, lowrank.choose(model, **EXPLICIT).ranks, SAMPLE)
    with pytest.raises(InputError, match=words):
        lowrank.SwitchToLowRank(model, epoch=1, sample=SAMPLE, keep=[], first=None)
    lowrank.SwitchToLowRank(model, epoch=1, sample=SAMPLE, keep=["fc1"], first=None)


def test_layers_that_are_not_called_stay_dense_with_keep_auto():
    found = lowrank.resolve(Functional(), SAMPLE, {"keep": "auto", "first": None, "rank_ratio": 0.5})
    assert {name for name, reason in found["keep"].items() if reason == auto.UNCALLED} == {"fc1", "unused"}
    assert lowrank.rehearse(Functional(), lowrank.choose(Functional(), **found).ranks, SAMPLE) is None


def test_a_list_that_does_not_keep_them_gives_one_warning_with_their_names():
    model = Functional()
    ranks = lowrank.choose(model, **EXPLICIT).ranks
    warning = lowrank.rehearse(model, ranks, SAMPLE)
    assert "2 of 5 layers to factorise are not called in the forward pass (fc1, unused)" in str(warning)
    with pytest.warns(UserWarning, match=r"not called in the forward pass \(fc1, unused\)") as seen:
        lowrank.SwitchToLowRank(model, epoch=1, sample=SAMPLE, keep=[], first=None)
    assert len(seen) == 1


def test_the_macs_of_a_swin_transformer_do_not_rise_and_its_attention_is_named():
    from torchvision.models import swin_t

    with torch.device("meta"):
        model = swin_t(num_classes=10)
        images = torch.zeros(1, 3, 64, 64)
    before = counting.macs(model, images)[""]
    found = lowrank.resolve(model, [images], {"keep": "auto", "first": "auto", "rank_ratio": 0.25})
    choice = lowrank.choose(model, **found)
    attention = {name for name, _ in model.named_modules() if name.endswith(("qkv", "attn.proj"))}
    assert len(attention) == 24
    assert {name for name, reason in choice.left.items() if reason == auto.UNCALLED} == attention
    lowrank.restructure(model, choice.ranks)
    assert counting.macs(model, images)[""] < before


SMALL = ("profile=smoke", "epochs=2", "batch_size=16", "dataset.train_images=32", "dataset.test_images=16")
EVERYTHING = ("model.low_rank.keep=[]", "model.low_rank.first=null")
NET = """
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, classes: int, strict: bool):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 16, 3, stride=2), nn.Conv2d(16, 16, 3, stride=2)
        self.middle, self.head = nn.Linear(16, 16), nn.Linear(16, classes)
        self.strict = strict

    def forward(self, images):
        x = self.body(self.stem(images).relu()).relu().mean((2, 3))
        x = functional.linear(x, self.middle.weight)
        return self.head(x * len(self.middle.__constants__) if self.strict else x)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    (tmp_path / "my_reading_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_reading_net", raising=False)
    return "model=any", "model.net._target_=my_reading_net.Net", *EVERYTHING


@pytest.mark.parametrize("method", ["vanilla", "pufferfish"])
def test_a_run_that_would_die_at_the_switch_is_refused_before_training(invoke: Command, net: tuple[str, ...], method: str):
    done = invoke(*net, "model.net.strict=true", *SMALL, f"method={method}", "run_dir=run")
    if method == "vanilla":  # factorises nothing
        assert done.returncode == 0, done.stderr
        return
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the model fails with low-rank layers in place of middle (AttributeError: " in done.stderr
    assert "epoch" not in done.stdout


def test_a_run_warns_once_of_listed_layers_that_are_not_called(invoke: Command, net: tuple[str, ...]):
    done = invoke(*net, "model.net.strict=false", *SMALL, "method=pufferfish", "run_dir=run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("are not called in the forward pass (middle)") == 1


def test_describe_refuses_and_warns_too(net: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["pufferfish-describe", *net, "model.net.strict=true", "profile=smoke"])
    with pytest.raises(SystemExit) as ended:
        describe.run()
    assert ended.value.code == 2
    assert "the model fails with low-rank layers in place of middle" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["pufferfish-describe", *net, "model.net.strict=false", "profile=smoke", "json=true"])
    describe.run()
    printed = capsys.readouterr()
    assert "are not called in the forward pass (middle)" in printed.err
    assert {row["layer"] for row in json.loads(printed.out)["layers"] if row["rank"]} >= {"middle"}
