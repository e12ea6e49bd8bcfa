"""Parameter and MAC counts match the paper exactly, for every model it gives counts for."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
import torch
from rich.console import Console
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.cli import describe as describe_command
from pufferfish_bench.lowrank import counting
from pufferfish_bench.models.resnet50 import ResNet50
from pufferfish_bench.paper import model_counts
from pufferfish_bench.paper.numbers import paper_numbers
from pufferfish_bench.report import describe
from tests.support.repository import MODELS


def described(*overrides: str) -> dict:
    printed = io.StringIO()
    words = ["pufferfish-describe", "json=true", *overrides]
    with mock.patch.object(sys, "argv", words), mock.patch.dict(os.environ), contextlib.redirect_stdout(printed):
        describe_command.run()
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module", params=MODELS)
def description(request: pytest.FixtureRequest) -> dict:
    return described(f"model={request.param}")


def test_parameters_and_macs_match_the_paper_exactly(description: dict):
    paper = paper_numbers()["models"].get(description["model"], {})  # empty for a model that is not in the paper
    for net, numbers in paper.items():
        if net == "note":
            continue
        total = description["totals"][net]
        assert total["parameters"] == numbers["params"]
        if "macs_exact" in numbers:
            assert total["macs_as_in_paper"] == numbers["macs_exact"]
        if "macs" in numbers:
            assert f"{total['macs_as_in_paper'] / 1e9:.2f}" == f"{numbers['macs'] / 1e9:.2f}"


def test_the_fully_low_rank_net_is_smaller_than_the_hybrid(description: dict):
    hybrid, low_rank = (description["totals"][net]["parameters"] for net in ("hybrid", "low_rank"))
    if description["model"] in ("lstm", "vgg11"):  # no hybrid in the paper: both nets are the same
        assert low_rank == hybrid
    else:
        assert low_rank < hybrid


def test_the_layers_add_up_to_the_totals(description: dict):
    for suffix, net in (("", "vanilla"), ("_hybrid", "hybrid")):
        for figure in ("parameters", "macs"):
            assert sum(row[figure + suffix] for row in description["layers"]) == description["totals"][net][figure]


def test_every_rank_is_a_quarter_of_the_smaller_dimension(description: dict):
    for row in description["layers"]:
        if row["rank"]:
            out, *inputs = row["shape"]
            assert row["rank"] == int(min(out, torch.Size(inputs).numel()) / 4)


def test_the_paper_has_numbers_for_its_models():
    assert set(paper_numbers()["models"]) >= {"vgg11", "vgg19", "vgg19_lth", "resnet18", "resnet50", "wrn50_2"}


def test_a_net_that_differs_from_the_papers_is_described_without_the_papers_numbers():
    for overrides in (["profile=cpu"], ["model.low_rank.rank_ratio=0.5"], ["dataset.classes=7"]):
        totals = described("model=resnet18", *overrides)["totals"]
        assert all(not total["paper"] for total in totals.values())


def test_the_stem_norm_is_an_option():
    assert described("model=resnet18", "model.net.stem_norm=true")["totals"]["vanilla"]["parameters"] == 11_173_834 + 2 * 64


def test_late_strides_compute_the_same_function():
    """So the reported difference in MACs is a difference in cost only."""
    torch.manual_seed(0)
    model = ResNet50(classes=4, width=0.125, inner_width=1).eval()
    lowrank.factorise(model, lowrank.choose(model, keep=["conv1", "fc"], first=None, rank_ratio=0.25).ranks)
    images = torch.randn(2, 3, 64, 64)
    early, macs = model(images), counting.macs(model, images[:1])[""]
    late = model_counts.with_late_strides(model)
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
        ("transformer", ["(for text: one word)."], ["paper's way"]),
        ("resnet18", ["0.56 G", "adds BatchNorm"], ["pooling", "LSTM"]),
    ],
)
def test_the_description_explains_only_the_counts_that_apply_to_the_model(model: str, there: list[str], absent: list[str]):
    printed = io.StringIO()
    describe.show(described(f"model={model}"), Console(file=printed, width=1000))
    totals = printed.getvalue().partition("totals")[2]
    assert [words for words in there if words not in totals] == []
    assert [words for words in absent if words in totals] == []


def test_macs_of_a_convolution_and_a_linear_layer_match_their_formulas():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 7))
    image = torch.zeros(1, 3, 10, 10)
    convolution, product = 9 * 3 * 8 * 25, 8 * 25 * 7
    counted = counting.macs(model, image)
    assert (counted["0"], counted["3"], counted[""]) == (convolution, product, convolution + product)
    assert counting.macs_as_in_paper(model, image) == convolution + 8 * 25 + 8 * 25 + product  # plus bias and ReLU


def test_counting_leaves_the_model_unchanged():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.BatchNorm2d(4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counting.macs(model, torch.randn(1, 3, 8, 8))
    counting.macs_as_in_paper(model, torch.randn(1, 3, 8, 8))
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_shared_parameter_is_counted_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert counting.parameters(model) == 16


def test_buffers_are_what_a_state_dict_has_besides_the_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    assert counting.buffers(model) == 2 * (4 + 4 + 1)  # means, variances and a counter
    assert counting.buffers(model) + counting.parameters(model) == sum(t.numel() for t in model.state_dict().values())
    model[2].register_buffer("scratch", torch.zeros(7), persistent=False)
    assert counting.buffers(model) == 18


def test_table_7_counts_the_buffers_of_the_vanilla_net_as_parameters():
    total = described("model=resnet50")["totals"]["vanilla"]
    assert total["parameters_and_buffers"] == paper_numbers()["table7_eb_train"]["vanilla"]["params"]


def printed_description(*overrides: str) -> str:
    printed = io.StringIO()
    describe.show(described(*overrides), Console(file=printed, width=1000))
    return printed.getvalue()


def test_a_model_without_low_rank_settings_is_described_at_full_rank():
    description = described("model=resnet18", "~model.low_rank")
    assert {net: total["parameters"] for net, total in description["totals"].items()} == {"vanilla": 11_173_834}
    assert sum(row["parameters"] for row in description["layers"]) == 11_173_834
    printed = printed_description("model=resnet18", "~model.low_rank")
    assert "model.low_rank is not set" in printed
    assert "where it differs" not in printed


def test_describing_a_model_with_invalid_ranks_is_refused(refused: Callable):
    def command(words: list[str]) -> None:
        described(*words)

    refused(command, ["model.low_rank.ranks={layer4.1.conv2: true}"], "rank True for layer4.1.conv2 is neither")
    refused(command, ["~model.low_rank", "+model.low_rank={keep: []}"], "model.low_rank.first is not set")


def test_factorisation_that_makes_a_net_larger_is_reported(capsys: pytest.CaptureFixture):
    totals = described("model=resnet18", "model.low_rank.rank_ratio=1")["totals"]
    complaint = capsys.readouterr().err
    for net in ("hybrid", "low_rank"):
        assert f"the model has {totals[net]['parameters']:,} parameters instead of 11,173,834" in complaint
    described("model=lstm", "model.low_rank.rank_ratio=1")  # hybrid and low-rank are the same net
    assert capsys.readouterr().err.count("factorisation does not make 2 of 2 layers smaller") == 1
    described("model=resnet18")
    assert capsys.readouterr().err == ""


def test_in_the_papers_models_every_layer_that_is_not_kept_is_factored(description: dict):
    assert description["left"] == {}


class Attentive(nn.Module):
    """Has parameters of its own next to torch's Transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(5, 8))
        self.mixing = nn.Parameter(torch.zeros(8, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x + self.places) @ self.mixing)


def test_the_layers_add_up_with_nested_modules_that_have_parameters_and_with_torchs_fused_kernels():
    ranks = {"keep": [], "first": None, "rank_ratio": 0.25, "ranks": None}
    settings = {"build": Attentive, "sample": lambda: [torch.zeros(1, 5, 8)], "as_in_paper": False}
    description = model_counts.describe("attentive", **settings, hybrid=ranks, fully=ranks)
    rows = {row["layer"]: row for row in description["layers"]}
    attention = 5 * 8 * (3 * 8 + 8) + 2 * 5 * 5 * 8  # projections, then scores and their products with the values
    macs = {name: row["macs"] for name, row in rows.items() if row["macs"]}
    feed_forward = 5 * 8 * 12
    assert macs == {
        "": 5 * 8 * 8, "layer.self_attn": attention, "layer.linear1": feed_forward, "layer.linear2": feed_forward
    }  # fmt: skip
    assert rows["layer.linear1"]["macs_hybrid"] == 5 * 2 * (8 + 12)
    assert sum(row["macs_hybrid"] for row in rows.values()) == description["totals"]["hybrid"]["macs"]
    model = Attentive()
    assert counting.macs(model, torch.zeros(1, 5, 8))[""] == sum(macs.values())  # the model has real weights, not only shapes
    assert torch.backends.mha.get_fastpath_enabled()
    printed = io.StringIO()
    describe.show(description, Console(file=printed, width=1000))
    assert "not factorised: the model itself: Attentive holds places, mixing itself, not as the weight" in printed.getvalue()
    attention_hybrid = 4 * 5 * 2 * (8 + 8) + 2 * 5 * 5 * 8  # the scores and their products with the values stay
    assert rows["layer.self_attn"]["macs_hybrid"] == attention_hybrid
    assert (rows["layer.self_attn"]["parameters"], rows["layer.self_attn"]["parameters_hybrid"]) == (4 * 72, 4 * (2 * 16 + 8))
    assert sum(row["parameters_hybrid"] for row in rows.values()) == description["totals"]["hybrid"]["parameters"]


def test_the_papers_count_of_macs_is_not_shown_for_layers_that_it_does_not_see():
    ranks = {"keep": [], "first": None, "rank_ratio": 0.25, "ranks": None}
    nets = ((partial(nn.Conv1d, 8, 8, 3), (1, 8, 9)), (partial(nn.LSTM, 8, 8, 2, bidirectional=True), (5, 1, 8)))
    for layer, sample in nets:
        settings = {"build": lambda layer=layer: nn.Sequential(layer()), "hybrid": ranks, "fully": ranks}
        found = model_counts.describe("own", **settings, sample=lambda sample=sample: [torch.zeros(sample)], as_in_paper=False)
        assert found["totals"]["vanilla"]["macs_as_in_paper"] is None
        assert found["totals"]["hybrid"]["macs"] == found["layers"][0]["macs_hybrid"] > 0
