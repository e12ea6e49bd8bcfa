"""Factorisation of third-party modules: torch's Transformers compute the same, and modules that are not factored are named."""

import copy
import math
from collections.abc import Callable

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import LowRank, counting
from pufferfish_bench.lowrank.lstm import LSTM, LowRankLSTM
from tests.support.commands import QUICK, Command
from tests.support.nets import TinyNet

SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}
EVERYTHING = {"keep": [], "first": None, "ranks": {}}


def causal(length: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def encoder(**options: bool) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(**SIZES, batch_first=True, **options), 2)


PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])
SEEN = ~PADDED[..., None]  # in padded places torch's fast path writes zeros, the slow path does not
# a module, and the ways to call it with a source and a target of five words in two rows
TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], list[Callable[[nn.Module, Tensor, Tensor], Tensor]]]] = {
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(**SIZES, batch_first=True),
        [
            lambda m, x, y: m(x),
            lambda m, x, y: m(x, src_mask=causal(5)),
            lambda m, x, y: m(x, src_key_padding_mask=PADDED) * SEEN,
        ],
    ),
    "encoder layer, norm first, sequence first": (
        lambda: nn.TransformerEncoderLayer(**SIZES, norm_first=True),
        [lambda m, x, y: m(x)],
    ),
    "encoder": (encoder, [lambda m, x, y: m(x), lambda m, x, y: m(x, src_key_padding_mask=PADDED) * SEEN]),
    "encoder without biases": (lambda: encoder(bias=False), [lambda m, x, y: m(x, src_key_padding_mask=PADDED) * SEEN]),
    "decoder layer": (
        lambda: nn.TransformerDecoderLayer(**SIZES, batch_first=True),
        [lambda m, x, y: m(y, x), lambda m, x, y: m(y, x, tgt_mask=causal(5), memory_key_padding_mask=PADDED)],
    ),
    "Transformer": (
        lambda: nn.Transformer(**SIZES, num_encoder_layers=2, num_decoder_layers=2, batch_first=True),
        [
            lambda m, x, y: m(x, y),
            lambda m, x, y: m(x, y, tgt_mask=causal(5), src_key_padding_mask=PADDED, memory_key_padding_mask=PADDED),
        ],
    ),
}


@pytest.fixture(params=TRANSFORMERS)
def transformer(request: pytest.FixtureRequest) -> tuple[nn.Module, Callable[[nn.Module], list[Tensor]]]:
    """One of torch's Transformers with weights that all differ, and a function that calls it in every way."""
    torch.manual_seed(0)
    build, calls = TRANSFORMERS[request.param]
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms too
    source, target = torch.randn(2, 2, 5, SIZES["d_model"])

    def outputs(module: nn.Module) -> list[Tensor]:
        found = []
        for training in (True, False):
            module.train(training)
            for gradients in (True, False):
                with torch.set_grad_enabled(gradients):
                    found += [call(module, source, target) for call in calls]
        return found

    return model, outputs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_torchs_transformers_compute_the_same_at_full_rank_in_training_and_evaluation(transformer):
    model, outputs = transformer
    expected = outputs(model)
    factored = copy.deepcopy(model)
    done = lowrank.factorise(factored, lowrank.choose(factored, **EVERYTHING, rank_ratio=1.0).ranks)
    attention = {name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    assert attention <= done.keys()
    assert {name.rpartition(".")[2] for name in done.keys() - attention} == {"linear1", "linear2"}
    for ours, theirs in zip(outputs(factored), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(outputs(lowrank.merge(factored)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_torchs_transformers_at_a_lower_rank_compute_the_same_in_evaluation_as_in_training(transformer):
    model, outputs = transformer
    full = outputs(model)[0]
    lowrank.factorise(model, lowrank.choose(model, **EVERYTHING, rank_ratio=0.25).ranks)
    found = outputs(model)
    calls = len(found) // 4  # training and evaluation, each with and without gradients
    assert not torch.allclose(found[0], full, rtol=1e-2, atol=1e-3)
    for number, evaluated in enumerate(found[calls:]):
        torch.testing.assert_close(evaluated, found[number % calls], rtol=1e-4, atol=1e-5)


@given(inputs=st.integers(1, 6), outputs=st.integers(1, 6), kernel=st.integers(1, 3), bias=st.booleans(), seed=st.integers(0, 9))
def test_the_weight_of_a_factored_layer_is_the_one_it_computes_with(
    inputs: int, outputs: int, kernel: int, bias: bool, seed: int
):
    torch.manual_seed(seed)
    for layer, x in (
        (nn.Linear(inputs, outputs, bias), torch.randn(3, inputs)),
        (nn.Conv2d(inputs, outputs, kernel, bias=bias), torch.randn(2, inputs, 4, 5)),
    ):
        factored, _ = lowrank.factorise_layer(layer, 1)
        like = copy.deepcopy(layer)
        like.load_state_dict({"weight": factored.weight, "bias": factored.bias} if bias else {"weight": factored.weight})
        torch.testing.assert_close(like(x), factored(x), rtol=1e-4, atol=1e-5)
        assert (factored.bias is None) == (not bias)
        factored.weight.sum().backward()
        assert factored.u.weight.grad is not None
        assert list(factored.state_dict()) == ["u.weight", "v.weight", *["v.bias"] * bias]


@st.composite
def convolutions_of_any_dimension(draw) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 99)))
    dimensions = draw(st.sampled_from([1, 2, 3]))
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1](
        draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 3)), stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)), dilation=draw(st.integers(1, 2)), bias=draw(st.booleans()),
    )  # fmt: skip
    return layer, torch.randn(2, layer.in_channels, *(7, 6, 5)[:dimensions])


@given(convolutions_of_any_dimension())
def test_convolutions_of_one_to_three_dimensions_are_factored_and_merged(drawn: tuple[nn.Module, Tensor]):
    layer, x = drawn
    model = nn.Sequential(copy.deepcopy(layer))
    lowrank.factorise(model, {"0": min(lowrank.matrix_shape(layer))})
    assert isinstance(model[0], LowRank)
    assert set(model[0].v.kernel_size) == {1}
    torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-5)
    merged = lowrank.merge(model)[0]
    assert repr(merged) == repr(layer)
    torch.testing.assert_close(merged(x), layer(x), rtol=1e-4, atol=1e-5)


def test_the_memory_format_of_three_dimensional_convolutions_is_preserved():
    layer = nn.Conv3d(4, 5, 3).to(memory_format=torch.channels_last_3d)
    assert lowrank.factorise_layer(layer, 2)[0].u.weight.is_contiguous(memory_format=torch.channels_last_3d)


class Own(nn.Module):
    """Has a matrix that is not in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))
        self.scale = nn.Parameter(torch.randn(4, 1, 1))  # not a matrix, although it has three dimensions


UNFACTORED = {
    "lstm": (nn.LSTM(4, 5, proj_size=2), "nn.LSTM with proj_size=2 has no low-rank form here"),
    "own_lstm": (type("OwnLSTM", (nn.LSTM,), {})(4, 5), "OwnLSTM may not compute the same as its base class"),
    "own_attention": (type("OwnAttention", (nn.MultiheadAttention,), {})(4, 2), "OwnAttention may not compute the same"),
    "gru": (
        nn.GRU(4, 5),
        "nn.GRU cannot be factorised (it contains weight_ih_l0, weight_hh_l0); of recurrent layers, only nn.LSTM",
    ),
    "rnn": (nn.RNN(4, 5), "nn.RNN cannot be factorised"),
    "cell": (nn.LSTMCell(4, 5), "nn.LSTMCell cannot be factorised (it contains weight_ih, weight_hh)"),
    "transposed": (nn.ConvTranspose2d(4, 5, 3), "nn.ConvTranspose2d cannot be factorised (it contains weight)"),
    "bilinear": (nn.Bilinear(4, 5, 6), "nn.Bilinear cannot be factorised"),
    "own": (Own(), "Own holds table itself, not as the weight of a known kind of layer"),
    "lazy": (nn.LazyLinear(4), "LazyLinear may not compute the same"),
    "normed": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), "base class: its weight is parametrised"),
    "hooked": (nn.utils.spectral_norm(nn.Linear(4, 5)), "its weight is computed from other parameters"),
}
SPARED = {
    "embedding": nn.Embedding(7, 8), "bag": nn.EmbeddingBag(7, 8), "norm": nn.LayerNorm((4, 5)), "relu": nn.PReLU(4),
    "pictures": nn.BatchNorm2d(4),
}  # fmt: skip


def test_modules_with_matrices_that_are_not_factored_are_named_with_the_reason():
    model = nn.ModuleDict({name: module for name, (module, _) in UNFACTORED.items()} | SPARED | {"head": nn.Linear(6, 6)})
    choice = lowrank.choose(model, **EVERYTHING, rank_ratio=0.5)
    assert choice.ranks == {"head": 3}
    assert choice.left.keys() == UNFACTORED.keys()
    for name, (_, words) in UNFACTORED.items():
        assert words in choice.left[name]


def test_layers_that_are_kept_or_come_before_the_first_are_not_named():
    model = nn.ModuleDict({"before": nn.GRU(4, 5), "first": nn.Linear(6, 6), "cell": nn.GRUCell(4, 5), "after": nn.GRU(4, 5)})
    choice = lowrank.choose(model, keep=["cell"], first="first", rank_ratio=0.5)
    assert choice.left.keys() == {"after"}


def test_matrices_of_the_model_itself_are_named_too():
    model = Own()
    model.head = nn.Linear(6, 6)
    assert lowrank.choose(model, **EVERYTHING, rank_ratio=0.5).left.keys() == {""}


@pytest.mark.parametrize("how", [lowrank.factorise, lowrank.restructure])
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ({"fc1": 3, "fc9": 2}, "has no layer 'fc9'; its layers are: conv1, fc1, fc2"),
        ({"fc1": 3, "conv2": 2}, "conv2 is already low-rank"),
        ({"fc1": 3, "conv2.u": 2}, "conv2.u is already low-rank"),
        ({"fc1": 3, "norm": 2}, r"norm \(nn.BatchNorm2d\) cannot be factorised.*nn.Linear"),
        ({"fc1": 3, "fc2": 5}, r"rank 5 for fc2 is not an integer in 1\.\.4; its matrix is 4 x 12"),
        ({"fc1": 3, "fc2": 0}, "rank 0 for fc2"),
        ({"fc1": 3, "fc2": True}, "rank True for fc2"),
        ({"fc1": 3, "fc2": 2.0}, "rank 2.0 for fc2"),
        ({"fc1": 3, "": 2}, "the model itself .TinyNet. cannot be replaced"),
        ({"fc1": 3, "grouped": 2}, r"grouped \(nn.Conv2d\) cannot be factorised: grouped convolution"),
        ({"fc1": 3, "again": 2}, "shared with another layer"),
    ],
)
def test_a_layer_that_cannot_be_factored_is_refused_before_anything_is_changed(how: Callable, ranks: dict, words: str):
    model = TinyNet()
    lowrank.factorise(model, {"conv2": 3})
    model.grouped = nn.Conv2d(4, 4, 3, groups=2)
    model.tied = nn.Linear(5, 5)
    model.again = nn.Linear(5, 5)
    model.again.weight = model.tied.weight
    before, shape = copy.deepcopy(model.state_dict()), repr(model)
    with pytest.raises(InputError, match=words):
        how(model, ranks)
    assert repr(model) == shape
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_layer_that_has_diverged_leaves_the_layers_before_it_unchanged():
    model = TinyNet()
    model.fc2.weight.data.fill_(math.nan)
    shape = repr(model)
    with pytest.raises(InputError, match="diverged"):
        lowrank.factorise(model, {"fc1": 3, "fc2": 2})
    assert repr(model) == shape


def test_a_rank_may_be_an_integer_of_another_library():
    model = TinyNet()
    lowrank.factorise(model, {"fc1": numpy.int64(3)})
    assert model.fc1.u.out_features == 3


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(6, 6), "the model itself .nn.Linear. cannot be replaced.*nn.Sequential"),
        (LSTM(6, 6), "the model itself .LSTM. cannot be replaced.*nn.Sequential"),
        (nn.Sequential(nn.ReLU(), nn.Embedding(4, 4)), "nn.Sequential has no layer that can be factorised; only nn.Linear, "),
        (nn.GRU(4, 5), "nn.GRU has no layer that can be factorised .the model: nn.GRU cannot be factorised"),
        (nn.LSTM(4, 5), "the model itself .nn.LSTM. cannot be replaced.*nn.Sequential"),
        (nn.Sequential(LowRank(nn.Linear(4, 2), nn.Linear(2, 4))), "already low-rank"),
        (nn.Sequential(LowRankLSTM(4, 4, 2)), "already low-rank"),
    ],
)
def test_a_model_without_a_layer_to_factor_is_refused_with_the_reason(model: nn.Module, words: str):
    with pytest.raises(InputError, match=words):
        lowrank.choose(model, **EVERYTHING, rank_ratio=0.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank_ratio": True}, "rank_ratio=True"),
        ({"rank_ratio": math.nan}, "rank_ratio=nan"),
        ({"rank_ratio": "0.5"}, "rank_ratio=0.5 is outside"),
        ({"ranks": {"fc1": True}}, r"rank True for fc1 is neither an integer in 1\.\.12 nor a ratio"),
        ({"ranks": {"fc1": "many"}}, "rank many for fc1"),
        ({"ranks": {"fc1": None}}, "rank None for fc1"),
        ({"ranks": 4}, "ranks=4 must give"),
        ({"ranks": "fc1"}, "ranks=fc1 must give"),
        ({"keep": 4}, "keep=4 must be a list"),
        ({"keep": None}, "keep=None must be a list"),
        ({"first": 4}, "first=4 is not a layer"),
        ({"ranks": {"norm": 2}}, "'norm' in low_rank matches no layer"),
        ({"ranks": {"gru": 2}}, "no layer of that name is factorised .gru: nn.GRU cannot be factorised"),
        ({"ranks": {"conv2": 2}}, "conv2 is already low-rank"),
    ],
)
def test_an_invalid_choice_is_refused_by_name(changes: dict, words: str):
    model = TinyNet()
    model.gru = nn.GRU(4, 5)
    lowrank.factorise(model, {"conv2": 3})
    with pytest.raises(InputError, match=words):
        lowrank.choose(model, **EVERYTHING | {"rank_ratio": 0.5} | changes)


def test_layers_of_a_sequential_model_may_be_given_by_number():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    assert lowrank.choose(model, keep=[0], first=1, rank_ratio=0.25, ranks={3: 5}).ranks == {"1": 2, "2": 2, "3": 5}


@given(
    sizes=st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9), st.booleans()), min_size=1, max_size=4),
    ratio=st.sampled_from([0.25, 0.5, 1.0]),
)
def test_layers_that_factorisation_does_not_make_smaller_are_reported_with_the_size_of_the_net(sizes: list, ratio: float):
    model = nn.ModuleList(LSTM(inputs, out) if recurrent else nn.Linear(inputs, out) for inputs, out, recurrent in sizes)
    ranks = {name: lowrank.rank_of(lowrank.matrix_shape(layer), ratio) for name, layer in model.named_children()}
    message, before = lowrank.growth(model, ranks), counting.parameters(model)
    smaller = copy.deepcopy(model)
    lowrank.restructure(smaller, ranks)
    after = counting.parameters(smaller)
    parts = zip(model.children(), smaller.children(), strict=True)
    grown = sum(counting.parameters(factored) >= counting.parameters(whole) for whole, factored in parts)
    if grown:
        assert f"does not make {grown} of {len(ranks)} layers smaller" in message
        assert f"the model has {after:,} parameters instead of {before:,}" in message
    else:
        assert message is None


def test_a_rank_of_true_is_refused_with_a_clear_message(invoke: Command):
    refused = invoke("method=pufferfish", *QUICK, "model.low_rank.ranks={layer4.1.conv2: true}")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "rank True for layer4.1.conv2 is neither an integer in 1.." in refused.stderr


@pytest.mark.parametrize(("method", "grows"), [("pufferfish", True), ("hybrid", True), ("vanilla", False)])
def test_factorisation_that_makes_a_net_larger_is_reported_once(invoke: Command, method: str, grows: bool):
    finished = invoke(f"method={method}", *QUICK, "epochs=2", "model.low_rank.rank_ratio=1")
    assert finished.returncode == 0
    warning = "warning: factorisation does not make 14 of 14 layers smaller (layer1.1.conv1, layer1.1.conv2, "
    assert finished.stderr.count(warning) == finished.stderr.count("\n") == grows


@pytest.mark.parametrize("method", ["pufferfish", "hybrid", "low_rank", "lth"])
def test_methods_that_factor_refuse_a_model_without_low_rank_settings_with_a_clear_message(invoke: Command, method: str):
    refused = invoke(f"method={method}", *QUICK, "~model.low_rank")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    wanted = "give method.levels" if method == "lth" else "add low_rank: {keep: [conv1, head], first: null, rank_ratio: 0.25, "
    assert "the model has no low_rank" in refused.stderr
    assert wanted in refused.stderr


@pytest.mark.parametrize(
    ("low_rank", "sentence"),
    [
        ("{keep: []}", "model.low_rank.first is not set"),
        ("7", "model.low_rank=7: a mapping is expected, or null"),
        (
            "{keep: [], first: null, rank_ratio: 0.25, ranks: null, rnaks: 1}",
            "there is no setting model.low_rank.rnaks",
        ),
    ],
)
def test_malformed_low_rank_settings_are_refused_with_a_clear_message(invoke: Command, low_rank: str, sentence: str):
    refused = invoke("method=pufferfish", *QUICK, "~model.low_rank", f"+model.low_rank={low_rank}")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert sentence in refused.stderr


@pytest.mark.parametrize(
    "arguments", [("method=vanilla",), ("method=lth", "method.levels=1"), ("method=eb_train", "method.masks=2")]
)
def test_methods_that_factor_nothing_run_without_low_rank_settings(invoke: Command, arguments: tuple[str, ...]):
    finished = invoke(*arguments, *QUICK, "epochs=3", "~model.low_rank")
    assert (finished.returncode, finished.stderr) == (0, "")
