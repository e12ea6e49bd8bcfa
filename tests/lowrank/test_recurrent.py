"""LSTM layers: torch's LSTM is the reference for outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import LSTM, LowRankLSTM, gate_matrices
from pufferfish_bench.models.lstm import LanguageModel

sizes = st.integers(1, 7)


def dense(inputs: int, hidden: int) -> LSTM:
    layer = LSTM(inputs, hidden).double()
    nn.init.normal_(layer.bias_ih_l0)
    return layer


def inputs_and_state(time: int, batch: int, inputs: int, hidden: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    x, h, c = (torch.randn(*shape, dtype=torch.double) for shape in ((time, batch, inputs), (batch, hidden), (batch, hidden)))
    return x.requires_grad_(), (h.requires_grad_(), c.requires_grad_())


def everything(layer: nn.Module, x: Tensor, state: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Outputs, final state, and the gradients of a mixture of both in every tensor that can have one."""
    outputs, (h, c) = layer(x, state)
    torch.manual_seed(0)
    mixture = sum((tensor * torch.randn(tensor.shape, dtype=tensor.dtype)).sum() for tensor in (outputs, h, c))
    wanted = [x, *state]
    return [outputs, h, c, *torch.autograd.grad(mixture, wanted)]


@given(time=sizes, batch=sizes, inputs=sizes, hidden=sizes)
def test_at_full_rank_the_factored_layer_computes_the_same_as_torchs(time: int, batch: int, inputs: int, hidden: int):
    assume(inputs >= hidden)  # otherwise the hidden state's matrices would need a higher rank than the inputs allow
    torch.manual_seed(time)
    layer = dense(inputs, hidden)
    factored, kept = lowrank.factorise_layer(layer, hidden)
    assert kept == pytest.approx(1.0)
    x, state = inputs_and_state(time, batch, inputs, hidden)
    for ours, theirs in zip(everything(factored, x, state), everything(layer, x, state), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(time=sizes, batch=sizes, inputs=sizes, hidden=sizes, rank=st.integers(1, 4))
def test_the_gradients_of_the_factors_match_those_of_a_plain_loop(time: int, batch: int, inputs: int, hidden: int, rank: int):
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
    assert "bias_hh_l0" not in dict(layer.named_parameters())
    assert not layer.bias_hh_l0.any()


@given(inputs=sizes, hidden=sizes, rank=st.integers(1, 4))
def test_a_merged_layer_computes_the_same_as_the_factored_one(inputs: int, hidden: int, rank: int):
    factored = LowRankLSTM(inputs, hidden, rank).double()
    nn.init.normal_(factored.bias)
    merged = lowrank.merge(nn.ModuleDict({"lstm": factored}))["lstm"]
    assert isinstance(merged, LSTM)
    x, state = inputs_and_state(3, 2, inputs, hidden)
    for ours, theirs in zip(everything(merged, x, state), everything(factored, x, state), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_gate_has_its_own_best_approximation():
    layer = dense(6, 8)
    factored, kept = lowrank.factorise_layer(layer, 3)
    parts, energy, lost = gate_matrices(factored), 0.0, 0.0
    for (side, gate), matrix in gate_matrices(layer).items():
        S = torch.linalg.svdvals(matrix)
        off = matrix - parts[f"v_{side}", gate] @ parts[f"u_{side}", gate]
        torch.testing.assert_close(off.square().sum(), S[3:].square().sum())
        energy, lost = energy + S.square().sum(), lost + S[3:].square().sum()
    assert kept == pytest.approx(float(1 - lost / energy))
    assert torch.equal(factored.bias.flatten(), layer.bias_ih_l0)


def test_macs_are_those_of_the_matrices_both_dense_and_factored():
    model = LanguageModel(vocabulary=50, hidden=8, layers=2, dropout=0.0)
    word = torch.tensor([[0]])
    counted = counting.macs(model, word)
    assert counted["lstm.0"] == counted["lstm.1"] == 8 * 8 * 8
    assert counted["decoder"] == 50 * 8
    lowrank.factorise(model, lowrank.choose(model, keep=["decoder"], first=None, rank_ratio=0.25).ranks)
    assert counting.macs(model, word)["lstm.0"] == 8 * (2 * 8 + 8 * 2)


def test_each_gate_is_initialised_as_a_separate_matrix():
    torch.manual_seed(0)
    model = LanguageModel(vocabulary=10, hidden=64, layers=1, dropout=0.0)
    bound = (6 / (64 + 64)) ** 0.5  # Xavier's bound for 64 x 64, not for the four gates stacked
    for matrix in gate_matrices(model.lstm[0]).values():
        assert 0.95 * bound < float(matrix.abs().max()) <= bound
    assert float(model.embedding.weight.detach().abs().max()) <= 0.1
    assert model.decoder.weight is model.embedding.weight


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_applied_after_the_embedding_and_every_layer_and_is_off_in_evaluation(training: bool):
    model = LanguageModel(vocabulary=10, hidden=8, layers=2, dropout=0.5).train(training)
    words, zero = torch.randint(10, (3, 2)), torch.zeros(2, 8)
    torch.manual_seed(0)
    ours, _ = model(words)
    torch.manual_seed(0)
    x = F.dropout(model.embedding(words), 0.5, training)
    for layer in model.lstm:
        x = F.dropout(layer(x, (zero, zero))[0], 0.5, training)
    assert torch.equal(ours, model.decoder(x))


@pytest.mark.parametrize("factored", [False, True])
def test_in_mixed_precision_outputs_match_full_precision_and_the_state_stays_in_float32(factored: bool):
    torch.manual_seed(0)
    model, words = LanguageModel(vocabulary=10, hidden=8, layers=2, dropout=0.0), torch.randint(10, (5, 2))
    if factored:
        lowrank.factorise(model, {"lstm.0": 3, "lstm.1": 3})
    precise = model(words)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(words)
        losses, states = model(words, [(h.bfloat16(), c.bfloat16()) for h, c in precise[1]], words)
    losses.mean().backward()
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), precise[0], rtol=0.02, atol=0.02)
    assert {tensor.dtype for state in states for tensor in state} == {torch.float32}
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.requires_grad)
