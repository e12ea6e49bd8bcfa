"""Models of transformers, torchvision and timm: what can be factorised is, and merges back; what cannot be is named."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import pufferfish_bench.models.torchvision_import  # noqa: F401  (before torchvision)
from pufferfish_bench import lowrank
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.layers import LowRankConv1D
from tests.support.nets import TinyNet

EVERYTHING: dict[str, Any] = {"keep": [], "first": None, "rank_ratio": 1.0}


@pytest.fixture
def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=12)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture
def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=11, max_position_embeddings=12)).eval()


WORDS = torch.tensor([[1, 2, 3, 4]])


def test_gpt2_is_factored_with_its_conv1d_layers_and_merges_into_the_original_model(gpt2: nn.Module):
    original = copy.deepcopy(gpt2)
    choice = lowrank.choose(gpt2, **EVERYTHING)
    assert choice.ranks == {
        f"transformer.h.{block}.{layer}": 8
        for block in range(2)
        for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    assert choice.left == {"lm_head": "its weight is shared with another layer (transformer.wte)"}
    lowrank.factorise(gpt2, choice.ranks)
    assert sum(isinstance(module, LowRankConv1D) for module in gpt2.modules()) == 8
    torch.testing.assert_close(gpt2(WORDS).logits, original(WORDS).logits, rtol=1e-4, atol=1e-5)
    merged = lowrank.merge(gpt2)
    assert type(merged.transformer.h[0].mlp.c_fc) is type(original.transformer.h[0].mlp.c_fc)
    assert repr(merged) == repr(original)
    state = {name: tensor + 1 for name, tensor in original.state_dict().items()}
    original.load_state_dict(state)
    original.load_state_dict(merged.state_dict())
    torch.testing.assert_close(original(WORDS).logits, merged(WORDS).logits)


def test_a_conv1d_of_lower_rank_counts_computes_and_carries_momentum_with_its_transposed_weight(gpt2: nn.Module):
    dense = gpt2.transformer.h[0].mlp.c_fc  # weight (8, 32)
    assert lowrank.matrix_shape(dense) == (32, 8)
    assert lowrank.weights_before_and_after(dense, 2) == (256, 2 * 40)
    assert lowrank.stable_rank(dense) == pytest.approx(lowrank.stable_rank(transposed(dense)))
    factored, kept = lowrank.factorise_layer(dense, 2)
    like, same = lowrank.factorise_layer(transposed(dense), 2)
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(factored(x), like(x))
    assert kept == pytest.approx(same)
    assert factored.weight.shape == dense.weight.shape
    model, direction = nn.ModuleDict({"layer": factored}), torch.randn(8, 32)
    carried = lowrank.carry_momentum({"layer.weight": direction, "layer.bias": torch.ones(32)}, model)
    (factored.weight * direction).sum().backward()  # the gradient in the dense weight is the direction
    torch.testing.assert_close(carried["layer.u.weight"], factored.u.weight.grad)
    torch.testing.assert_close(carried["layer.v.weight"], factored.v.weight.grad)
    assert torch.equal(carried["layer.v.bias"], torch.ones(32))
    u, v = lowrank.chain_rule(direction, factored)
    assert torch.equal(u, carried["layer.u.weight"])
    assert torch.equal(v, carried["layer.v.weight"])


def transposed(layer: Any) -> nn.Linear:
    linear = nn.Linear(layer.nx, layer.nf)
    linear.load_state_dict({"weight": layer.weight.t(), "bias": layer.bias})
    return linear


def test_bert_is_factored_and_its_tied_decoder_is_named(bert: nn.Module):
    original = copy.deepcopy(bert)
    choice = lowrank.choose(bert, **EVERYTHING)
    assert len(choice.ranks) == 2 * 6 + 1
    assert choice.left == {"cls.predictions.decoder": "its weight is shared with another layer (bert.embeddings.word_embeddings)"}
    lowrank.factorise(bert, choice.ranks)
    torch.testing.assert_close(bert(WORDS).logits, original(WORDS).logits, rtol=1e-4, atol=1e-5)
    original.load_state_dict(lowrank.merge(bert).state_dict())
    assert bert.state_dict().keys() == original.state_dict().keys()
    torch.testing.assert_close(bert(WORDS).logits, original(WORDS).logits)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_auto_keeps_no_layer_inside_a_model_that_begins_and_ends_with_its_embedding(name: str, request: pytest.FixtureRequest):
    found = lowrank.resolve(request.getfixturevalue(name), [WORDS], {"keep": "auto", "first": "auto", "rank_ratio": 0.25})
    assert not any(reason.startswith(("the first", "the last")) for reason in found["keep"].values())


def test_grouped_convolutions_of_a_mobilenet_are_named():
    from torchvision.models import mobilenet_v2

    with torch.device("meta"):
        model = mobilenet_v2(width_mult=0.25)
    choice = lowrank.choose(model, keep=[], first=None, rank_ratio=0.25)
    grouped = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.groups > 1}
    assert len(grouped) == 17
    assert choice.left.keys() == grouped
    assert all("grouped convolution (groups=" in reason for reason in choice.left.values())


def test_a_layer_subclass_of_timm_is_named_by_its_class():
    timm_layers = pytest.importorskip("timm.layers")
    model = nn.Sequential(nn.Linear(8, 8), timm_layers.Conv2dSame(4, 8, 3))
    choice = lowrank.choose(model, keep=[], first=None, rank_ratio=0.25)
    assert choice.left == {"1": "timm.layers.conv2d_same.Conv2dSame may not compute the same as its base class"}


def test_a_class_that_only_has_the_name_conv1d_is_not_taken_for_hugging_faces():
    own = type("Conv1D", (nn.Module,), {})()
    own.weight = nn.Parameter(torch.zeros(4, 5))
    choice = lowrank.choose(nn.Sequential(nn.Linear(8, 8), own), keep=[], first=None, rank_ratio=0.25)
    assert choice.left == {"1": "Conv1D holds weight itself, not as the weight of a known kind of layer"}


def test_tied_layers_name_each_other():
    model = TinyNet()
    model.again, model.third = nn.Linear(12, 4), nn.Linear(12, 4)
    model.again.weight = model.third.weight = model.fc2.weight
    left = lowrank.choose(model, keep=[], first=None, rank_ratio=0.5).left
    assert left["fc2"] == "its weight is shared with another layer (again, third)"
    assert left["third"] == "its weight is shared with another layer (fc2, again)"


def test_replaying_ranks_gives_every_kind_the_names_and_shapes_of_the_factored_model(gpt2: nn.Module):
    model = nn.ModuleDict({
        "gpt2": gpt2, "attention": nn.MultiheadAttention(8, 2, kdim=6), "lstm": nn.LSTM(6, 5, 2, bias=False, bidirectional=True),
    })  # fmt: skip
    replayed = copy.deepcopy(model)
    ranks = lowrank.choose(model, keep=[], first=None, rank_ratio=0.5).ranks
    lowrank.factorise(model, ranks)
    lowrank.restructure(replayed, ranks)
    replayed.load_state_dict(model.state_dict())
    assert counting.parameters(replayed) == counting.parameters(model)
    torch.testing.assert_close(replayed["gpt2"](WORDS).logits, model["gpt2"](WORDS).logits)
