"""Low-rank attention: nn.MultiheadAttention is the reference for outputs, weights, gradients and random numbers."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pufferfish_bench.models.torchvision_import  # noqa: F401  (before torchvision)
from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.attention import LowRankAttention

EVERYTHING: dict[str, Any] = {"keep": [], "first": None, "rank_ratio": 0.5}
LENGTH, KEYS, BATCH = 4, 5, 3


def randomised(layer: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


@st.composite
def layers(draw) -> nn.MultiheadAttention:
    torch.manual_seed(draw(st.integers(0, 99)))
    heads, flag = draw(st.sampled_from([1, 2, 3])), st.booleans()
    apart = draw(flag)
    return randomised(
        nn.MultiheadAttention(
            6, heads, bias=draw(flag), batch_first=draw(flag), add_bias_kv=draw(flag), add_zero_attn=draw(flag),
            kdim=draw(st.sampled_from([None, 7, 8])) if apart else None, vdim=9 if apart else None,
            dropout=draw(st.sampled_from([0.0, 0.4])),
        ).double()
    )  # fmt: skip


def inputs(layer: nn.MultiheadAttention, batched: bool) -> list[Tensor]:
    lengths = ((LENGTH, layer.embed_dim), (KEYS, layer.kdim), (KEYS, layer.vdim))
    shapes = [((BATCH, length, size) if layer.batch_first else (length, BATCH, size)) if batched else (length, size)
              for length, size in lengths]  # fmt: skip
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


def masks(draw, heads: int, batched: bool) -> dict[str, Any]:
    """Masks that leave at least one key to every query."""
    found: dict[str, Any] = {}
    floating = draw(st.booleans())
    kind = draw(st.sampled_from(["none", "matrix", "each head"]))
    if kind != "none":
        shape = (LENGTH, KEYS) if kind == "matrix" else ((BATCH if batched else 1) * heads, LENGTH, KEYS)
        found["attn_mask"] = torch.randn(shape).double() if floating else torch.rand(shape) < 0.4
    if draw(st.booleans()):
        shape = (BATCH, KEYS) if batched else (KEYS,)
        found["key_padding_mask"] = torch.randn(shape).double() if floating else torch.rand(shape) < 0.4
    for mask in found.values():
        if mask.dtype == torch.bool:
            mask[..., 0] = False
    return found


def computed(layer: nn.Module, given_inputs: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """Outputs, weights if asked for, and the gradients in the inputs."""
    torch.manual_seed(7)  # for the dropout
    outputs, weights = layer(*given_inputs, **options)
    assert (weights is None) == (not options.get("need_weights", True))
    found = [outputs] if weights is None else [outputs, weights]
    torch.manual_seed(0)
    mixture = sum((tensor * torch.randn(tensor.shape, dtype=tensor.dtype)).sum() for tensor in found)
    return [*found, *torch.autograd.grad(mixture, given_inputs)]


@given(layer=layers(), data=st.data())
def test_at_full_rank_it_computes_the_same_as_torchs_with_all_options(layer: nn.MultiheadAttention, data: st.DataObject):
    batched = data.draw(st.booleans())
    options = masks(data.draw, layer.num_heads, batched) | {
        "need_weights": data.draw(st.booleans()), "average_attn_weights": data.draw(st.booleans()),
    }  # fmt: skip
    factored, kept = lowrank.factorise_layer(layer, lowrank.matrix_shape(layer)[1])
    assert isinstance(factored, LowRankAttention)
    assert kept == pytest.approx(1.0)
    given_inputs = inputs(layer, batched)
    for training in (True, False):
        pairs = zip(
            computed(factored.train(training), given_inputs, options), computed(layer.train(training), given_inputs, options),
            strict=True,
        )  # fmt: skip
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_the_causal_hint_gives_the_same_as_the_causal_mask(need_weights: bool, padded: bool):
    torch.manual_seed(0)
    layer = randomised(nn.MultiheadAttention(6, 2, batch_first=True))
    factored, _ = lowrank.factorise_layer(layer, 6)
    x = torch.randn(BATCH, LENGTH, 6)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    padding = torch.zeros(BATCH, LENGTH)
    padding[:, -1] = -torch.inf
    options = {"attn_mask": mask, "need_weights": need_weights, "key_padding_mask": padding if padded else None}
    for ours, theirs in zip(factored(x, x, x, is_causal=True, **options), layer(x, x, x, **options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="needs attn_mask"):
        factored(x, x, x, is_causal=True)


@given(layer=layers(), rank=st.integers(1, 5))
def test_merging_gives_torchs_layer_with_the_same_names_and_results(layer: nn.MultiheadAttention, rank: int):
    model = nn.ModuleDict({"attention": copy.deepcopy(layer.eval())})
    lowrank.factorise(model, {"attention": rank})
    factored = model["attention"]
    given_inputs = inputs(layer, True)
    expected = factored(*given_inputs)[0]
    merged = lowrank.merge(model)["attention"]
    assert type(merged) is nn.MultiheadAttention
    assert {name: tensor.shape for name, tensor in merged.state_dict().items()} == {
        name: tensor.shape for name, tensor in layer.state_dict().items()
    }
    torch.testing.assert_close(merged.eval()(*given_inputs)[0], expected)
    layer.load_state_dict(merged.state_dict())  # fits the layer that it was made from, with its options
    torch.testing.assert_close(layer(*given_inputs)[0], expected)


@given(layer=layers(), rank=st.integers(1, 5))
def test_the_four_projections_are_factored_separately(layer: nn.MultiheadAttention, rank: int):
    factored, _ = lowrank.factorise_layer(layer, rank)
    stacked = layer.in_proj_weight
    dense = [*stacked.chunk(3)] if stacked is not None else [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    parts = (factored.q_proj, factored.k_proj, factored.v_proj, factored.out_proj)
    for part, weight in zip(parts, (*dense, layer.out_proj.weight), strict=True):
        u, v, _ = lowrank.truncated_svd(weight, rank)
        torch.testing.assert_close(part.weight, v @ u)
    whole, thin = lowrank.weights_before_and_after(layer, rank)
    assert whole == sum(weight.numel() for weight in (*dense, layer.out_proj.weight))
    assert thin == sum(p.numel() for name, p in factored.named_parameters() if name.endswith("weight"))


def test_random_factors_draw_random_numbers_and_empty_ones_do_not():
    layer = nn.MultiheadAttention(8, 2)
    before = torch.get_rng_state()
    lowrank.empty_factors(layer, 2)
    lowrank.merge(nn.Sequential(lowrank.factorise_layer(layer, 2)[0]))
    assert torch.equal(torch.get_rng_state(), before)
    assert lowrank.random_factors(layer, 2).q_proj.u.weight.std() > 0
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_multiply_accumulates_are_those_of_the_factors_and_of_the_scores():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.zeros(2, 5, 8)

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer

        def forward(self, words: Tensor) -> Tensor:
            y: Tensor = self.attention(words, words, words, need_weights=False)[0]
            return y

    model, scores = SelfAttention(), 2 * 2 * 5 * 5 * 8
    assert counting.macs(model, x)["attention"] == 10 * 4 * 8 * 8 + scores
    lowrank.factorise(model, {"attention": 2})
    assert counting.macs(model, x)["attention"] == 10 * 4 * 2 * (8 + 8) + scores


def small_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    return randomised_slightly(
        VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=12, num_classes=5)
    )


def randomised_slightly(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_torchvisions_vision_transformer_computes_the_same_at_full_rank_and_merges_back():
    model = small_vit()
    factored = copy.deepcopy(model)
    choice = lowrank.choose(factored, **EVERYTHING | {"rank_ratio": 1.0})
    lowrank.factorise(factored, choice.ranks)
    assert choice.left.keys() == {"encoder"}  # its table of positions
    assert sum(isinstance(module, LowRankAttention) for module in factored.modules()) == 2
    images = torch.randn(3, 3, 16, 16)
    for training in (True, False):
        torch.testing.assert_close(factored.train(training)(images), model.train(training)(images), rtol=1e-3, atol=1e-4)
    loss = factored.train()(images).square().sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in factored.parameters())
    merged = lowrank.merge(factored)
    model.load_state_dict(merged.state_dict())
    torch.testing.assert_close(merged(images), model.train()(images), rtol=1e-3, atol=1e-4)


def test_the_ends_of_a_vision_transformer_are_found_in_the_order_of_execution():
    found = lowrank.resolve(small_vit(), [torch.zeros(1, 3, 16, 16)], {"keep": "auto", "first": None, "rank_ratio": 0.25})
    assert found["keep"] == {"conv_proj": "the first weight layer", "heads.head": "the last weight layer"}


def test_momentum_is_carried_to_the_factors_of_queries_keys_values_and_outputs():
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": randomised(nn.MultiheadAttention(6, 2)), "head": nn.Linear(6, 4)})
    momenta = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    lowrank.factorise(model, {"attention": 3})
    carried = lowrank.carry_momentum(momenta, model)
    assert carried.keys() == dict(model.named_parameters()).keys()
    stacked = zip("qkv", momenta["attention.in_proj_weight"].chunk(3), momenta["attention.in_proj_bias"].chunk(3), strict=True)
    wanted = {name: (weight, bias) for name, weight, bias in stacked}
    wanted["out"] = momenta["attention.out_proj.weight"], momenta["attention.out_proj.bias"]
    for name, (weight, bias) in wanted.items():
        u, v = lowrank.chain_rule(weight, model.get_submodule(f"attention.{name}_proj"))
        assert torch.equal(carried[f"attention.{name}_proj.u.weight"], u)
        assert torch.equal(carried[f"attention.{name}_proj.v.weight"], v)
        assert torch.equal(carried[f"attention.{name}_proj.v.bias"], bias)
    assert torch.equal(carried["head.weight"], momenta["head.weight"])


@pytest.mark.parametrize("need_weights", [True, False])
def test_under_autocast_it_computes_in_the_number_format_of_torchs(need_weights: bool):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, batch_first=True)
    factored, _ = lowrank.factorise_layer(layer, 6)
    x, mask = torch.randn(BATCH, LENGTH, 6), nn.Transformer.generate_square_subsequent_mask(LENGTH)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (module(x, x, x, attn_mask=mask, need_weights=need_weights)[0] for module in (factored, layer))
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
