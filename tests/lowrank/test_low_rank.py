"""The laws of factorisation, on layers of any shape."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import LowRank
from tests.support.nets import TINY_LAYERS, TinyNet

sides = st.integers(1, 9)


@st.composite
def convolutions(draw) -> nn.Conv2d:
    torch.manual_seed(draw(st.integers(0, 99)))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (2, 3)]))
    same = draw(st.booleans())
    return nn.Conv2d(
        draw(sides),
        draw(sides),
        kernel,
        stride=1 if same else draw(st.sampled_from([1, 2, (1, 2)])),
        padding="same" if same else draw(st.sampled_from([0, 1, (2, 0)])),
        dilation=2 if same else draw(st.sampled_from([1, 2])),  # torch warns about "same" with even kernels and dilation 1
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "circular"])),
    )


@given(convolutions())
def test_full_rank_factorisation_reproduces_the_convolution(layer: nn.Conv2d):
    factored, kept = lowrank.factorise_layer(layer, min(lowrank.matrix_shape(layer)))
    images = torch.randn(2, layer.in_channels, 9, 8)
    torch.testing.assert_close(factored(images), layer(images), rtol=1e-4, atol=1e-5)
    assert kept == pytest.approx(1.0)


@given(inputs=sides, outputs=sides, bias=st.booleans(), seed=st.integers(0, 99))
def test_full_rank_factorisation_reproduces_the_linear_layer(inputs: int, outputs: int, bias: bool, seed: int):
    torch.manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias)
    factored, _ = lowrank.factorise_layer(layer, min(inputs, outputs))
    x = torch.randn(3, 5, inputs)
    torch.testing.assert_close(factored(x), layer(x), rtol=1e-4, atol=1e-5)


@given(layer=convolutions(), data=st.data())
def test_truncation_error_is_the_discarded_singular_values(layer: nn.Conv2d, data: st.DataObject):
    rank = data.draw(st.integers(1, min(lowrank.matrix_shape(layer))))
    matrix = layer.weight.detach().flatten(1)
    singular = torch.linalg.svdvals(matrix.double())
    u, v, kept = lowrank.truncated_svd(layer.weight, rank)
    error = (matrix - v @ u).double().norm()
    torch.testing.assert_close(error, singular[rank:].norm(), rtol=1e-3, atol=1e-5)
    assert kept == pytest.approx(float(singular[:rank].square().sum() / singular.square().sum()), rel=1e-4)


def test_the_singular_values_are_split_evenly_between_both_factors():
    weight = torch.randn(6, 10)
    u, v, _ = lowrank.truncated_svd(weight, 4)
    singular = torch.linalg.svdvals(weight)[:4]
    torch.testing.assert_close(u @ u.T, torch.diag(singular), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(v.T @ v, torch.diag(singular), rtol=1e-4, atol=1e-4)


@given(convolutions())
def test_a_merged_convolution_computes_the_same_as_the_factored_one(layer: nn.Conv2d):
    factored, _ = lowrank.factorise_layer(layer, max(1, min(lowrank.matrix_shape(layer)) // 2))
    merged = lowrank.merge(nn.Sequential(factored))[0]
    images = torch.randn(2, layer.in_channels, 9, 8)
    torch.testing.assert_close(merged(images), factored(images), rtol=1e-4, atol=1e-5)
    assert repr(merged) == repr(layer)


def test_merging_undoes_a_full_rank_factorisation_of_a_model():
    model = TinyNet().eval()
    before = copy.deepcopy(model)
    lowrank.factorise(model, lowrank.choose(model, **TINY_LAYERS | {"rank_ratio": 1.0}).ranks)
    assert sum(isinstance(module, LowRank) for module in model.modules()) == 2
    merged = lowrank.merge(model)
    assert merged.state_dict().keys() == before.state_dict().keys()
    for name, tensor in before.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_all_other_parameters_and_buffers_carry_over_bit_for_bit():
    model = TinyNet()
    model(torch.randn(5, 3, 8, 8))  # updates the running statistics
    before = copy.deepcopy(model.state_dict())
    lowrank.factorise(model, {"conv2": 3, "fc1": 2})
    after = model.state_dict()
    changed = {"conv2.weight", "fc1.weight", "fc1.bias"}
    assert set(after) == set(before) - changed | {
        "conv2.u.weight",
        "conv2.v.weight",
        "fc1.u.weight",
        "fc1.v.weight",
        "fc1.v.bias",
    }
    for name in set(before) - changed:
        assert torch.equal(after[name], before[name]), name
    assert torch.equal(after["fc1.v.bias"], before["fc1.bias"])
    assert model.conv2.u.training


def test_stride_padding_and_dilation_are_on_u_and_the_bias_is_on_v():
    layer = nn.Conv2d(6, 8, 3, stride=2, padding=2, dilation=2)
    factored = lowrank.random_factors(layer, 2)
    assert repr(factored.u) == repr(nn.Conv2d(6, 2, 3, stride=2, padding=2, dilation=2, bias=False))
    assert repr(factored.v) == repr(nn.Conv2d(2, 8, 1))


def test_the_memory_format_of_a_convolution_is_preserved():
    for memory_format in (torch.contiguous_format, torch.channels_last):
        layer = nn.Conv2d(6, 8, 3).to(memory_format=memory_format)
        factored, _ = lowrank.factorise_layer(layer, 2)
        assert factored.u.weight.is_contiguous(memory_format=memory_format)


def test_the_chain_rule_matches_the_gradient_autograd_gives_the_factors():
    layer = lowrank.random_factors(nn.Conv2d(4, 6, 3), 2)
    direction = torch.randn(6, 4, 3, 3)
    product = layer.v.weight.flatten(1) @ layer.u.weight.flatten(1)
    (product * direction.flatten(1)).sum().backward()  # d/d(product) is the direction
    u, v = lowrank.chain_rule(direction, layer)
    torch.testing.assert_close(u, layer.u.weight.grad)
    torch.testing.assert_close(v, layer.v.weight.grad)


def test_layers_that_cannot_be_factored_are_left_unchanged_and_named_with_the_reason():
    class Odd(nn.Linear):
        pass

    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Linear(9, 1), Odd(5, 5), nn.Linear(6, 6), nn.Linear(6, 6))
    model[4].weight = model[3].weight
    choice = lowrank.choose(model, keep=[], first=None, rank_ratio=0.5, ranks={})
    assert choice.ranks == {}
    words = {"0": "groups=2", "1": "thin", "2": "Odd", "3": "shared", "4": "shared"}
    assert choice.left.keys() == words.keys()
    for name, word in words.items():
        assert word in choice.left[name]


def test_a_module_that_is_used_in_two_places_is_not_factored():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    choice = lowrank.choose(model, keep=[], first=None, rank_ratio=0.5)
    assert choice.ranks == {}
    assert "shared" in choice.left["0"]


def test_a_frozen_layer_stays_frozen():
    model = nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Conv2d(6, 6, 3).requires_grad_(False), nn.Linear(6, 6))
    lowrank.factorise(model, {"0": 2, "1": 2, "2": 2})
    assert [all(p.requires_grad for p in layer.parameters()) for layer in model] == [False, False, True]


def test_non_finite_weights_are_reported_as_divergence_not_as_a_solver_failure():
    with pytest.raises(InputError, match="diverged"):
        lowrank.truncated_svd(torch.full((4, 5), torch.nan), 2)


def test_the_first_layer_the_kept_layers_and_explicit_ranks_are_honoured():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    assert lowrank.choose(model, keep=["4"], first="1", rank_ratio=0.25, ranks={"2": 5}).ranks == {"1": 2, "2": 5, "3": 2}
    assert lowrank.choose(model, keep=["4"], first="1", rank_ratio=0.25, ranks={"2": 0.5}).ranks == {"1": 2, "2": 4, "3": 2}
    assert lowrank.choose(model, keep=["[01]"], first=None, rank_ratio=0.01, ranks={}).ranks == {"2": 1, "3": 1, "4": 1}


def test_a_factored_layer_is_not_factored_again():
    model = TinyNet()
    lowrank.factorise(model, {"conv2": 3})
    assert set(lowrank.choose(model, keep=["fc2"], first=None, rank_ratio=0.5, ranks={}).ranks) == {"conv1", "fc1"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank_ratio": 0.0}, "rank_ratio=0.0"),
        ({"rank_ratio": 1.5}, "rank_ratio=1.5"),
        ({"first": "conv9"}, "conv9"),
        ({"keep": ["head*"]}, "head*"),
        ({"ranks": {"fc1": 99}}, "rank 99"),
        ({"ranks": {"fc1": 0}}, "rank 0"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(changes: dict, words: str):
    with pytest.raises(InputError, match=words.replace("*", r"\*")):
        lowrank.choose(TinyNet(), **TINY_LAYERS | changes)
