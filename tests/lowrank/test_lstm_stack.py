"""torch's nn.LSTM with low-rank gates: nn.LSTM is the reference for outputs, states and gradients."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm_stack import LowRankLSTMStack

HIDDEN, TIME, BATCH = 4, 5, 3


@st.composite
def layers(draw, dropout: float = 0.0) -> nn.LSTM:
    torch.manual_seed(draw(st.integers(0, 99)))
    flag, count = st.booleans(), draw(st.integers(1, 3))
    return nn.LSTM(
        draw(st.integers(HIDDEN, 6)), HIDDEN, count, bias=draw(flag), batch_first=draw(flag), bidirectional=draw(flag),
        dropout=dropout if count > 1 else 0.0,
    ).double()  # fmt: skip


def inputs(layer: Any, batched: bool, with_state: bool) -> list[Tensor]:
    """The inputs, and perhaps a state."""
    rows = len(layer.all_weights)
    shape = (BATCH, TIME) if layer.batch_first else (TIME, BATCH)
    shapes = [((*shape, layer.input_size) if batched else (TIME, layer.input_size))]
    shapes += [(rows, BATCH, HIDDEN) if batched else (rows, HIDDEN)] * 2 * with_state
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


def computed(layer: nn.Module, x: Tensor, *state: Tensor) -> list[Tensor]:
    torch.manual_seed(3)  # for the dropout
    outputs, (h, c) = layer(x, tuple(state)) if state else layer(x)
    torch.manual_seed(0)
    mixture = sum((tensor * torch.randn(tensor.shape, dtype=tensor.dtype)).sum() for tensor in (outputs, h, c))
    return [outputs, h, c, *torch.autograd.grad(mixture, [x, *state])]


@given(layer=layers(), batched=st.booleans(), with_state=st.booleans())
def test_at_full_rank_it_computes_the_same_as_torchs_with_all_options(layer: nn.LSTM, batched: bool, with_state: bool):
    factored, kept = lowrank.factorise_layer(layer, HIDDEN)
    assert isinstance(factored, LowRankLSTMStack)
    assert kept == pytest.approx(1.0)
    given_inputs = inputs(layer, batched, with_state)
    for ours, theirs in zip(computed(factored, *given_inputs), computed(layer, *given_inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(layer=layers(dropout=0.4), batched=st.booleans())
def test_dropout_between_layers_draws_the_same_random_numbers_as_torchs_and_only_in_training(layer: nn.LSTM, batched: bool):
    factored, _ = lowrank.factorise_layer(layer, HIDDEN)
    given_inputs = inputs(layer, batched, False)
    for training in (True, False):
        expected = computed(layer.train(training), *given_inputs)
        for ours, theirs in zip(computed(factored.train(training), *given_inputs), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@given(layer=layers(), rank=st.integers(1, 3))
def test_merging_gives_torchs_layer_whose_second_bias_is_zero(layer: nn.LSTM, rank: int):
    model = nn.Sequential(copy.deepcopy(layer))
    lowrank.factorise(model, {"0": rank})
    x = inputs(layer, True, False)[0]
    expected = model(x)[0]
    merged = lowrank.merge(model)[0]
    assert type(merged) is nn.LSTM
    assert repr(merged) == repr(layer)
    torch.testing.assert_close(merged(x)[0], expected)
    seconds = [tensor for name, tensor in merged.named_parameters() if "bias_hh" in name]
    assert len(seconds) == layer.bias * len(layer.all_weights)
    assert not any(tensor.any() for tensor in seconds)
    layer.load_state_dict(merged.state_dict())
    torch.testing.assert_close(layer(x)[0], expected)


@given(layer=layers(), rank=st.integers(1, 3))
def test_every_gate_matrix_has_its_own_factors_and_no_other_weights_are_counted(layer: nn.LSTM, rank: int):
    factored, _ = lowrank.factorise_layer(layer, rank)
    whole, thin = lowrank.weights_before_and_after(layer, rank)
    assert whole == sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
    assert thin == sum(p.numel() for name, p in factored.named_parameters() if "bias" not in name)
    first = layer.weight_ih_l0[HIDDEN : 2 * HIDDEN]  # the forget gate
    u, v, _ = lowrank.truncated_svd(first, rank)
    torch.testing.assert_close(factored.cells[0].v_ih[1] @ factored.cells[0].u_ih[1], v @ u)


def test_a_packed_sequence_is_refused_with_what_to_do():
    factored = lowrank.random_factors(nn.LSTM(4, 4), 2)
    packed = pack_sequence([torch.zeros(3, 4), torch.zeros(2, 4)])
    with pytest.raises(InputError, match=r"nn\.LSTM does not take a PackedSequence.*keep this nn\.LSTM dense"):
        factored(packed)


def test_the_multiply_accumulates_are_those_of_the_factors():
    model = nn.Sequential(nn.LSTM(6, 4, 2, bidirectional=True))
    x = torch.zeros(5, 3, 6)
    positions, gates = 5 * 3, 4
    matrices = [(4, 6), (4, 4), (4, 6), (4, 4), (4, 8), (4, 4), (4, 8), (4, 4)]
    assert counting.macs(model, x)[""] == positions * gates * sum(out * size for out, size in matrices)
    lowrank.factorise(model, {"0": 2})
    assert counting.macs(model, x)[""] == positions * gates * sum(2 * (out + size) for out, size in matrices)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
def test_weights_that_are_computed_by_hooks_are_not_factored_and_calls_of_flatten_parameters_still_work():
    model = nn.ModuleDict({"dropped": nn.utils.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"), "plain": nn.LSTM(4, 4)})
    choice = lowrank.choose(model, keep=[], first=None, rank_ratio=0.5)
    assert choice.ranks == {"plain": 2}
    assert "computed from other parameters" in choice.left["dropped"]
    lowrank.factorise(model, choice.ranks)
    model["plain"].flatten_parameters()


def test_the_momentum_of_an_lstm_is_not_carried():
    assert not lowrank.carries_momentum(nn.LSTM(4, 4))
    assert lowrank.carries_momentum(nn.MultiheadAttention(4, 2))


def test_under_autocast_it_computes_in_its_own_number_format():
    layer = nn.LSTM(4, 4, 2)
    factored, _ = lowrank.factorise_layer(layer, 4)
    x = torch.randn(5, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = factored(x)
    torch.testing.assert_close(outputs, layer(x)[0], rtol=1e-4, atol=1e-5)
