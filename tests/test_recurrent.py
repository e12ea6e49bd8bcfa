"""LSTM layers: torch's own is the reference, for outputs and for gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import counting, low_rank
from pufferfish_bench.models.lstm import LanguageModel
from pufferfish_bench.recurrent import LSTM, LowRankLSTM, gate_matrices

sizes = st.integers(1, 7)


def dense(inputs: int, hidden: int) -> LSTM:
    layer = LSTM(inputs, hidden).double()
    nn.init.normal_(layer.bias_ih_l0)
    return layer


def inputs_and_state(time: int, batch: int, inputs: int, hidden: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    x, h, c = (torch.randn(*shape, dtype=torch.double) for shape in ((time, batch, inputs), (batch, hidden), (batch, hidden)))
    return x.requires_grad_(), (h.requires_grad_(), c.requires_grad_())


def everything(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Outputs, end state, and the gradients of a mixture of them in all that can have one."""
    outputs, (h, c) = layer(x, state)
    torch.manual_seed(0)
    mixture = sum((tensor * torch.randn(tensor.shape, dtype=tensor.dtype)).sum() for tensor in (outputs, h, c))
    wanted = [x, *state]
    return [outputs, h, c, *torch.autograd.grad(mixture, wanted)]


@given(time=sizes, batch=sizes, inputs=sizes, hidden=sizes)
def test_at_full_rank_the_factored_layer_computes_what_torchs_computes(time: int, batch: int, inputs: int, hidden: int):
    torch.manual_seed(time)
    layer = dense(inputs, hidden)
    if inputs < hidden:  # the rank of the hidden state's matrices is higher than the inputs allow
        return
    factored, kept = low_rank.by_svd(layer, hidden)
    assert kept == pytest.approx(1.0)
    x, state = inputs_and_state(time, batch, inputs, hidden)
    for ours, theirs in zip(everything(factored, x, state), everything(layer, x, state), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(time=sizes, batch=sizes, inputs=sizes, hidden=sizes, rank=st.integers(1, 4))
def test_the_gradients_of_the_factors_are_those_of_a_plain_loop(time: int, batch: int, inputs: int, hidden: int, rank: int):
    torch.manual_seed(time)
    layer = LowRankLSTM(inputs, hidden, rank).double()
    nn.init.normal_(layer.bias)
    x, state = inputs_and_state(time, batch, inputs, hidden)

    def plain() -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        outputs = []
        for step in x:
            into = [layer.v_ih[gate] @ (layer.u_ih[gate] @ step.t()) for gate in range(4)]
            back = [layer.v_hh[gate] @ (layer.u_hh[gate] @ h.t()) for gate in range(4)]
            i, f, g, o = (a.t() + b.t() + layer.bias[gate] for gate, (a, b) in enumerate(zip(into, back, strict=True)))
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), (h, c)

    def gradients(outputs: Tensor, end: tuple[Tensor, Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        mixture = sum((tensor * torch.randn(tensor.shape, dtype=tensor.dtype)).sum() for tensor in (outputs, *end))
        return [outputs, *end, *torch.autograd.grad(mixture, [x, *state, *layer.parameters()])]

    for ours, theirs in zip(gradients(*layer(x, state)), gradients(*plain()), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_second_bias_is_zero_and_neither_trained_nor_counted():
    layer = LSTM(5, 6)
    assert counting.parameters(layer) == 4 * 6 * (5 + 6 + 1)
    assert not layer.bias_hh_l0.requires_grad
    assert not layer.bias_hh_l0.any()


@given(inputs=sizes, hidden=sizes, rank=st.integers(1, 4))
def test_merging_a_factored_layer_computes_the_same(inputs: int, hidden: int, rank: int):
    factored = LowRankLSTM(inputs, hidden, rank).double()
    nn.init.normal_(factored.bias)
    merged = low_rank.merge(nn.ModuleDict({"lstm": factored}))["lstm"]
    assert isinstance(merged, LSTM)
    x, state = inputs_and_state(3, 2, inputs, hidden)
    for ours, theirs in zip(everything(merged, x, state), everything(factored, x, state), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_gate_has_its_own_best_approximation():
    layer = dense(6, 8)
    factored, kept = low_rank.by_svd(layer, 3)
    parts, energy, lost = gate_matrices(factored), 0.0, 0.0
    for (side, gate), matrix in gate_matrices(layer).items():
        S = torch.linalg.svdvals(matrix)
        off = matrix - parts[f"v_{side}", gate] @ parts[f"u_{side}", gate]
        torch.testing.assert_close(off.square().sum(), S[3:].square().sum())
        energy, lost = energy + S.square().sum(), lost + S[3:].square().sum()
    assert kept == pytest.approx(float(1 - lost / energy))
    assert torch.equal(factored.bias.flatten(), layer.bias_ih_l0)


def test_macs_are_those_of_the_matrices_whole_and_factored():
    model = LanguageModel(vocabulary=50, hidden=8, layers=2, dropout=0.0)
    word = torch.tensor([[0]])
    counted = counting.macs(model, word)
    assert counted["lstm.0"] == counted["lstm.1"] == 8 * 8 * 8
    assert counted["decoder"] == 50 * 8
    low_rank.factorise(model, low_rank.choose(model, keep=["decoder"], first=None, rank_ratio=0.25).ranks)
    assert counting.macs(model, word)["lstm.0"] == 8 * (2 * 8 + 8 * 2)


def test_each_gate_starts_like_a_matrix_of_its_own():
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=10, hidden=64, layers=1, dropout=0.0)
    bound = (6 / (64 + 64)) ** 0.5  # Xavier's for 64 x 64, not for the four gates stacked
    for matrix in gate_matrices(model.lstm[0]).values():
        assert 0.95 * bound < float(matrix.abs().max()) <= bound
    assert float(model.embedding.weight.detach().abs().max()) <= 0.1
    assert model.decoder.weight is model.embedding.weight


def test_dropout_is_between_everything_and_off_in_tests():
    torch.manual_seed(0)
    model, words = LanguageModel(vocabulary=10, hidden=8, layers=2, dropout=0.5), torch.randint(10, (3, 2))
    first, second = (model(words)[0] for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(words)[0], model(words)[0])
