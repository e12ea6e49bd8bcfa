"""The paper's counts to the unit, for every model it gives a count of."""

import contextlib
import io
import json
import os
import sys
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
