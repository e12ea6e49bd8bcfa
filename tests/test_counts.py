"""The paper's counts to the unit, for every model it gives a count of."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from rich.console import Console
from torch import nn

from pufferfish_bench import counting, low_rank, main
from pufferfish_bench.models.bottleneck import ResNet50
from pufferfish_bench.report import describe
from pufferfish_bench.report.describe import paper_numbers
from tests.conftest import REPOSITORY

MODELS = sorted(path.stem for path in (REPOSITORY / "conf" / "model").glob("*.yaml"))


def described(*overrides: str) -> dict:
    printed = io.StringIO()
    words = ["pufferfish-describe", "json=true", *overrides]
    with mock.patch.object(sys, "argv", words), mock.patch.dict(os.environ), contextlib.redirect_stdout(printed):
        main.describe()
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module", params=MODELS)
def description(request: pytest.FixtureRequest) -> dict:
    return described(f"model={request.param}")


def test_parameters_and_macs_are_the_papers_to_the_unit(description: dict):
    paper = paper_numbers()["models"].get(description["model"], {})  # a model of one's own has none
    for net, numbers in paper.items():
        if net == "note":
            continue
        total = description["totals"][net]
        assert total["parameters"] == numbers["params"]
        if "macs_exact" in numbers:
            assert total["macs_as_in_paper"] == numbers["macs_exact"]
        if "macs" in numbers:
            assert f"{total['macs_as_in_paper'] / 1e9:.2f}" == f"{numbers['macs'] / 1e9:.2f}"


def test_the_fully_low_rank_net_spares_less_than_the_hybrid(description: dict):
    hybrid, low_rank = (description["totals"][net]["parameters"] for net in ("hybrid", "low_rank"))
    if description["model"] in ("lstm", "vgg11"):  # the paper has no hybrid of these: both are one net
        assert low_rank == hybrid
    else:
        assert low_rank < hybrid


def test_the_layers_add_up_to_the_totals(description: dict):
    for suffix, net in (("", "vanilla"), ("_hybrid", "hybrid")):
        for figure in ("parameters", "macs"):
            assert sum(row[figure + suffix] for row in description["layers"]) == description["totals"][net][figure]


def test_every_rank_follows_the_one_rule(description: dict):
    for row in description["layers"]:
        if row["rank"]:
            out, *inputs = row["shape"]
            assert row["rank"] == int(min(out, torch.Size(inputs).numel()) / 4)


def test_the_paper_has_numbers_for_its_models():
    assert set(paper_numbers()["models"]) >= {"vgg11", "vgg19", "vgg19_lth", "resnet18", "resnet50", "wrn50_2"}


def test_another_net_is_described_without_the_papers_numbers():
    for overrides in (["profile=cpu"], ["model.low_rank.rank_ratio=0.5"], ["dataset.classes=7"]):
        totals = described("model=resnet18", *overrides)["totals"]
        assert all(not total["paper"] for total in totals.values())


def test_the_stem_norm_is_an_option():
    assert described("model=resnet18", "model.stem_norm=true")["totals"]["vanilla"]["parameters"] == 11_173_834 + 2 * 64


def test_late_strides_are_the_same_function():
    """And so the difference in MACs that is told is one of cost alone."""
    torch.manual_seed(0)
    model = ResNet50(classes=4, width=0.125, inner_width=1).eval()
    low_rank.factorise(model, low_rank.choose(model, keep=["conv1", "fc"], first=None, rank_ratio=0.25).ranks)
    images = torch.randn(2, 3, 64, 64)
    early, macs = model(images), counting.macs(model, images[:1])[""]
    late = describe.with_late_strides(model)
    torch.testing.assert_close(late(images), early)
    assert counting.macs(late, images[:1])[""] > macs


def test_the_description_says_why_its_macs_are_fewer_than_the_papers(capsys: pytest.CaptureFixture):
    description = described("model=wrn50_2")
    describe.show(description, Console(width=1000))
    assert "9.95 G instead of 9.99 G" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "there", "absent"),
    [
        ("lstm", ["86.0 M", "adds twelve operations for every hidden unit of an LSTM."], ["BatchNorm", "G "]),
        ("transformer", ["(of text: one word)."], ["paper's way"]),
        ("resnet18", ["0.56 G", "adds BatchNorm"], ["pooling", "LSTM"]),
    ],
)
def test_the_description_says_what_is_counted_in_this_model(model: str, there: list[str], absent: list[str]):
    printed = io.StringIO()
    describe.show(described(f"model={model}"), Console(file=printed, width=1000))
    totals = printed.getvalue().partition("totals")[2]
    assert [words for words in there if words not in totals] == []
    assert [words for words in absent if words in totals] == []


def test_macs_of_a_convolution_and_a_product_are_their_formulas():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 7))
    image = torch.zeros(1, 3, 10, 10)
    convolution, product = 9 * 3 * 8 * 25, 8 * 25 * 7
    counted = counting.macs(model, image)
    assert (counted["0"], counted["3"], counted[""]) == (convolution, product, convolution + product)
    assert counting.macs_as_in_paper(model, image) == convolution + 8 * 25 + 8 * 25 + product  # the bias, the ReLU


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.BatchNorm2d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counting.macs(model, torch.randn(1, 3, 8, 8))
    counting.macs_as_in_paper(model, torch.randn(1, 3, 8, 8))
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_shared_parameter_counts_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert counting.parameters(model) == 16


def printed_description(*overrides: str) -> str:
    printed = io.StringIO()
    describe.show(described(*overrides), Console(file=printed, width=1000))
    return printed.getvalue()


def test_a_model_whose_config_says_nothing_of_factoring_is_described_at_full_rank():
    description = described("model=resnet18", "~model.low_rank")
    assert {net: total["parameters"] for net, total in description["totals"].items()} == {"vanilla": 11_173_834}
    assert sum(row["parameters"] for row in description["layers"]) == 11_173_834
    printed = printed_description("model=resnet18", "~model.low_rank")
    assert "model.low_rank says nothing about factoring" in printed
    assert "where it differs" not in printed


def test_a_description_of_wrong_ranks_is_refused(refused: Callable):
    def command(words: list[str]) -> None:
        described(*words)

    refused(command, ["model.low_rank.ranks={layer4.1.conv2: true}"], "rank True for layer4.1.conv2 is neither")
    refused(command, ["~model.low_rank", "+model.low_rank={keep: []}"], "model.low_rank.first is not set")


def test_a_net_that_factoring_makes_larger_is_told(capsys: pytest.CaptureFixture):
    totals = described("model=resnet18", "model.low_rank.rank_ratio=1")["totals"]
    complaint = capsys.readouterr().err
    for net in ("hybrid", "low_rank"):
        assert f"the net has {totals[net]['parameters']:,} parameters instead of 11,173,834" in complaint
    described("model=lstm", "model.low_rank.rank_ratio=1")  # both nets are one
    assert capsys.readouterr().err.count("factoring does not make 2 of 2 layers smaller") == 1
    described("model=resnet18")
    assert capsys.readouterr().err == ""


def test_the_models_of_the_paper_leave_nothing_alone_that_is_not_kept(description: dict):
    assert description["left"] == {}


class Attentive(nn.Module):
    """Holds parameters of its own beside a Transformer layer of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(5, 8))
        self.mixing = nn.Parameter(torch.zeros(8, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x + self.places) @ self.mixing)


def test_the_layers_add_up_where_modules_with_parameters_hold_others_and_torch_has_a_fused_kernel():
    ranks = {"keep": [], "first": None, "rank_ratio": 0.25, "ranks": None}
    settings = {"build": Attentive, "sample": lambda: [torch.zeros(1, 5, 8)], "as_in_paper": False}
    description = describe.describe("attentive", **settings, hybrid=ranks, fully=ranks)
    rows = {row["layer"]: row for row in description["layers"]}
    attention = 5 * 8 * (3 * 8 + 8) + 2 * 5 * 5 * 8  # the projections, then the scores and their products with the values
    macs = {name: row["macs"] for name, row in rows.items() if row["macs"]}
    feed_forward = 5 * 8 * 12
    assert macs == {
        "": 5 * 8 * 8, "layer.self_attn": attention, "layer.linear1": feed_forward, "layer.linear2": feed_forward
    }  # fmt: skip
    assert rows["layer.linear1"]["macs_hybrid"] == 5 * 2 * (8 + 12)
    assert sum(row["macs_hybrid"] for row in rows.values()) == description["totals"]["hybrid"]["macs"]
    model = Attentive()
    assert counting.macs(model, torch.zeros(1, 5, 8))[""] == sum(macs.values())  # of a net that is not only shapes
    assert torch.backends.mha.get_fastpath_enabled()
    printed = io.StringIO()
    describe.show(description, Console(file=printed, width=1000))
    assert "left alone: the model itself: Attentive is not factored (it holds places, mixing)" in printed.getvalue()
    assert "left alone: layer.self_attn: nn.MultiheadAttention is not factored" in printed.getvalue()
