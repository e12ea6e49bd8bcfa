"""`keep: auto` and `first: auto`: decided from shapes, without changing the model, and the same wherever they are decided."""

import copy
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import describe
from pufferfish_bench.config.restore import restored_model
from pufferfish_bench.lowrank import auto, counting
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.models.vgg import vgg19
from pufferfish_bench.records.files import RUN, read_json
from tests.support.commands import QUICK, SMALL, Command, assert_same_run, final_state, interrupt
from tests.support.nets import TinyNet
from tests.support.torchrun import TINY, run_ranks

AUTO = {"keep": "auto", "first": "auto", "rank_ratio": 0.25, "ranks": None}
FIRST, LAST = "the first weight layer", "the last weight layer"


class Planted(nn.Module):
    """Executed in another order than registered; two thin layers in front, one of which costs more when factored."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.wide = nn.Conv2d(16, 64, 3, padding=1, bias=False)
        self.pointwise = nn.Conv2d(16, 16, 1)  # at rank 4: half the MACs, but it moves more than it saves
        self.later_pointwise = nn.Conv2d(64, 64, 1)
        self.narrow = nn.Linear(64, 2)  # at rank 1: 66 weights instead of 128
        self.narrower = nn.Linear(2, 64)
        self.norm = nn.BatchNorm2d(16)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.unused = nn.Linear(30, 30)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pointwise(self.norm(self.stem(images)))
        x = self.later_pointwise(self.wide(x)).mean((2, 3))
        y: Tensor = self.head(x + self.narrower(self.narrow(x)))
        return y


SAMPLE = [torch.zeros(1, 3, 8, 8)]


def test_the_ends_in_the_order_of_execution_and_early_layers_that_gain_nothing_stay_dense():
    found = lowrank.resolve(Planted(), SAMPLE, AUTO)
    assert found["first"] is None
    kept = found["keep"]
    assert kept.keys() == {"stem", "head", "pointwise", "unused"}
    assert (kept["stem"], kept["head"], kept["unused"]) == (FIRST, LAST, auto.UNCALLED)
    assert "not cheaper when factored: an estimated cost of" in kept["pointwise"]
    assert "MACs instead of" in kept["pointwise"]
    choice = lowrank.choose(Planted(), **found)
    assert choice.ranks.keys() == {"wide", "later_pointwise", "narrow", "narrower"}
    assert choice.left == kept


def test_keep_auto_alone_and_first_auto_alone():
    keep = lowrank.resolve(Planted(), SAMPLE, AUTO | {"first": None})
    assert (keep["first"], keep["keep"]) == (None, {"stem": FIRST, "head": LAST, "unused": auto.UNCALLED})
    first = lowrank.resolve(Planted(), SAMPLE, AUTO | {"keep": ["he*", "stem"]})
    assert first["keep"].keys() == {"head", "stem", "pointwise"}
    assert first["keep"]["head"] == first["keep"]["stem"] == "in low_rank.keep"
    assert lowrank.resolve(Planted(), SAMPLE, AUTO | {"keep": []})["keep"].keys() == {"stem", "pointwise"}  # up to the wide layer
    named = lowrank.resolve(Planted(), SAMPLE, AUTO | {"first": "pointwise"})
    assert (named["first"], named["keep"]) == ("pointwise", {"stem": FIRST, "unused": auto.UNCALLED})  # head: before
    assert lowrank.choose(Planted(), **named).ranks.keys() == {"pointwise", "later_pointwise", "narrow", "narrower"}


def test_if_no_layer_gets_cheaper_only_the_ends_stay_dense():
    found = lowrank.resolve(TinyNet(), SAMPLE, AUTO)
    assert found["keep"] == {"conv1": FIRST, "fc2": LAST}
    ranks = lowrank.choose(TinyNet(), **found).ranks
    calls = auto.executed(TinyNet(), SAMPLE)
    for name, rank in ranks.items():
        dense, factored = auto.costs(lowrank.get_layer(TinyNet(), name), rank, [call for _, call in calls[name] if call])
        assert factored >= dense


def test_settings_without_auto_are_returned_unchanged_and_the_model_is_not_called():
    settings = {"keep": ["conv1"], "first": None, "rank_ratio": 0.5}
    assert lowrank.resolve(TinyNet(), ["no tensor"], settings) is settings
    assert not lowrank.is_auto(settings)
    assert not lowrank.is_auto(None)
    assert lowrank.is_auto(AUTO | {"keep": []})


@pytest.mark.parametrize("training", [True, False])
def test_deciding_changes_neither_the_model_nor_the_random_numbers(training: bool):
    class Restless(TinyNet):
        """Draws random numbers and counts its calls in evaluation too."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            self.seen = torch.rand(2)
            return super().forward(images + torch.rand(1))

    model = Restless().train(training)
    model.drop.eval()
    modes = [module.training for module in model.modules()]
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    buffers = [id(buffer) for buffer in model.buffers()]
    lowrank.resolve(model, SAMPLE, AUTO)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@given(seed=st.integers(0, 99), channels=st.integers(2, 40), ratio=st.sampled_from([0.1, 0.25, 0.9]))
def test_the_decision_depends_on_shapes_only(seed: int, channels: int, ratio: float):
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, channels, 3), nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, 2 * channels, 3), nn.Flatten(),
            nn.Linear(8 * channels, 7), nn.Linear(7, 7),
        )  # fmt: skip

    torch.manual_seed(seed)
    settings = AUTO | {"rank_ratio": ratio}
    real = lowrank.resolve(net(), [torch.randn(1, 3, 6, 6)], settings)
    with torch.device("meta"):
        shapes_only = lowrank.resolve(net(), [torch.zeros(1, 3, 6, 6)], settings)
    assert real == shapes_only
    assert lowrank.resolve(net().double(), [torch.zeros(1, 3, 6, 6).double()], settings) == real


def test_the_sample_is_moved_to_the_device_of_the_model():
    with torch.device("meta"):
        model = Planted()
    assert lowrank.resolve(model, SAMPLE, AUTO) == lowrank.resolve(Planted(), SAMPLE, AUTO)


def test_layers_whose_factors_are_not_smaller_are_kept_unless_a_rank_is_given():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    settings = AUTO | {"rank_ratio": 0.5}
    found = lowrank.resolve(model, [torch.zeros(1, 8)], settings)
    assert found["keep"] == {
        "0": FIRST, "1": "too thin to gain: 64 weights at rank 4 instead of 64",
        "2": "too thin to gain: 64 weights at rank 4 instead of 64", "3": LAST,
    }  # fmt: skip
    wanted = settings | {"ranks": {"1": 6}, "first": None}
    found = lowrank.resolve(model, [torch.zeros(1, 8)], wanted)
    assert found["keep"].keys() == {"0", "2", "3"}
    assert lowrank.choose(model, **found).ranks == {"1": 6}


def test_a_rank_for_a_layer_that_auto_keeps_is_refused_with_the_reason():
    found = lowrank.resolve(Planted(), SAMPLE, AUTO | {"ranks": {"head": 2}})
    with pytest.raises(InputError, match=r"a rank is given for 'head'.*head: the last weight layer"):
        lowrank.choose(Planted(), **found)


def test_an_embedding_counts_as_the_first_weight_layer_and_a_repeated_layer_by_its_calls():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(12, 12)
            self.middle = nn.Linear(12, 12)
            self.words = nn.Embedding(9, 12)

        def forward(self, words: Tensor) -> Tensor:
            y: Tensor = self.out(self.middle(self.out(self.words(words))))
            return y

    found = lowrank.resolve(Words(), [torch.zeros(2, 3, dtype=torch.long)], AUTO | {"first": None})
    assert found["keep"] == {"out": LAST}


@given(
    out=st.integers(1, 50), inputs=st.integers(1, 50), kernel=st.integers(1, 3), size=st.integers(3, 7), data=st.data(),
)  # fmt: skip
def test_the_cost_of_a_kernel_is_the_larger_of_its_macs_and_what_it_moves(out: int, inputs: int, kernel: int, size: int, data):
    rank = data.draw(st.integers(1, min(out, inputs)))
    layer, images = nn.Conv2d(inputs, out, kernel, bias=False), torch.zeros(2, inputs, size, size)
    calls = [call for _, call in auto.executed(nn.Sequential(layer), [images])["0"]]
    thin = lowrank.random_factors(layer, rank)
    between, after = thin.u(images), layer(images)

    def cost(kernel: nn.Module, before: Tensor, after: Tensor) -> int:
        return max(counting.macs(nn.Sequential(kernel), before)[""], auto.BALANCE * (before.numel() + after.numel()))

    expected = cost(layer, images, after), cost(thin.u, images, between) + cost(thin.v, between, after)
    assert auto.costs(layer, rank, calls) == expected


@pytest.mark.parametrize(
    ("build", "ends"),
    [
        (lambda: ResNet18(classes=10, width=1.0, stem_norm=False), {"conv1", "linear"}),
        (lambda: vgg19(classes=10, width=1.0), {"features.conv1", "classifier.fc19"}),
    ],
)
def test_the_projects_networks_keep_their_ends(build, ends: set[str]):
    with torch.device("meta"):
        found = lowrank.resolve(build(), [torch.zeros(1, 3, 32, 32)], AUTO)
    assert found["keep"].keys() == ends


def test_choose_refuses_the_word_itself_and_unknown_names_in_a_mapping():
    for settings in (AUTO, AUTO | {"keep": []}, AUTO | {"first": None}):
        with pytest.raises(InputError, match="auto, which needs a sample"):
            lowrank.choose(TinyNet(), **settings)
    with pytest.raises(InputError, match=r"'conv7' in low_rank\.keep is no layer"):
        lowrank.choose(TinyNet(), keep={"conv7": "why not"}, first=None, rank_ratio=0.5)


KEPT = ("model.low_rank.keep=auto", "model.low_rank.first=auto")


def test_a_run_with_auto_is_recorded_restored_and_resumed(invoke: Command, arguments: Callable, tmp_path: Path):
    whole = invoke("method=pufferfish", *QUICK, *KEPT)
    assert (whole.returncode, whole.stderr) == (0, "")
    written = read_json(tmp_path / "run" / RUN)
    assert written["settings"]["model"]["low_rank"]["keep"] == written["settings"]["method"]["layers"]["keep"] == "auto"
    kept = written["layers"]["keep"]
    assert (kept["conv1"], kept["linear"]) == (FIRST, LAST)
    assert written["operations"][0]["left"] == kept
    assert not kept.keys() & written["operations"][0]["layers"].keys()
    model = restored_model(tmp_path / "run", written)
    assert {name for name, module in model.named_modules() if isinstance(module, lowrank.LowRank)} == set(
        written["operations"][0]["layers"]
    )
    weights = final_state(tmp_path / "run")["model"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    words = arguments("method=pufferfish", *SMALL, *KEPT, "run_dir=stopped", "checkpoint_every=1")
    stopped = interrupt(words, tmp_path, signal.SIGTERM, lambda: any((tmp_path / "stopped" / "checkpoints").glob("*.pt")))
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    resumed = invoke("method=pufferfish", *SMALL, *KEPT, "run_dir=stopped")
    assert resumed.returncode == 0
    assert_same_run(tmp_path / "run", tmp_path / "stopped")


def test_two_ranks_decide_alike_and_as_one_does(invoke: Command, tmp_path: Path):
    done = run_ranks(tmp_path, "pufferfish_bench", "method=pufferfish", *TINY, *KEPT, "run_dir=two")
    assert done.returncode == 0, done.stderr
    assert invoke("method=pufferfish", *TINY, *KEPT, "run_dir=one").returncode == 0
    two, one = (read_json(tmp_path / name / RUN) for name in ("two", "one"))
    assert two["layers"] == one["layers"]
    assert two["operations"][0]["layers"].keys() == one["operations"][0]["layers"].keys()


@pytest.mark.parametrize("method", ["hybrid", "low_rank", "lth"])
def test_every_method_with_layers_accepts_auto(invoke: Command, tmp_path: Path, method: str):
    finished = invoke(f"method={method}", *QUICK, "epochs=1", *KEPT)
    assert (finished.returncode, finished.stderr) == (0, "")
    written = read_json(tmp_path / "run" / RUN)
    assert written["layers"]["keep"]["conv1"] == FIRST
    restored_model(tmp_path / "run", written)


def test_describe_shows_the_kept_layers_with_their_reasons(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    words = ["pufferfish-describe", "model=resnet18", *KEPT]
    monkeypatch.setattr("sys.argv", words)
    describe.run()
    shown = capsys.readouterr().out
    assert f"not factorised: conv1: {FIRST}" in shown
    assert f"not factorised: linear: {LAST}" in shown
    monkeypatch.setattr("sys.argv", [*words, "json=true"])
    describe.run()
    assert json.loads(capsys.readouterr().out)["left"] == {"conv1": FIRST, "linear": LAST}


@pytest.mark.parametrize("setting", ["model.low_rank.keep=automatic", "model.low_rank.keep=7"])
def test_other_words_are_refused(invoke: Command, setting: str):
    refused = invoke("method=vanilla", *QUICK, setting)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"{setting}: one of auto or a list" in refused.stderr
