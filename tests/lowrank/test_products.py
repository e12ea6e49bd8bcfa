"""Products through oneDNN equal plain ones, whatever the strides, and are used only where they can be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pufferfish_bench import lowrank
from pufferfish_bench.lowrank import counting, products
from pufferfish_bench.lowrank.lstm import LowRankLSTM
from pufferfish_bench.models.lstm import LanguageModel

sizes = st.integers(1, 40)
needs_onednn = pytest.mark.skipif(not products.ONEDNN, reason="this build of torch has no oneDNN")


@pytest.fixture
def always_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SMALLEST", 0)


def matrix(rows: int, columns: int, order: str) -> Tensor:
    """The same kind of matrix by rows, by columns, or as part of a wider one."""
    if order == "columns":
        return torch.randn(columns, rows).t()
    return torch.randn(rows, columns + 3)[:, :columns] if order == "part" else torch.randn(rows, columns)


orders = st.sampled_from(["rows", "columns", "part"])


@needs_onednn
@given(rows=sizes, inputs=sizes, outputs=sizes, x_order=orders, weight_order=orders, extra=st.booleans())
def test_a_product_through_onednn_equals_the_plain_one_for_all_strides(
    rows: int, inputs: int, outputs: int, x_order: str, weight_order: str, extra: bool
):
    torch.manual_seed(rows)
    x, weight = matrix(rows, inputs, x_order), matrix(outputs, inputs, weight_order)
    plus = torch.randn(rows, outputs) if extra else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "SMALLEST", 0)
        assert products.uses_onednn(x, 1)
        ours = products.linear(x, weight, plus)
    exact = x.double() @ weight.double().t() + (0 if plus is None else plus.double())
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("biased", [True, False])
def test_products_of_pairs_equal_plain_ones_from_either_library(biased: bool, monkeypatch: pytest.MonkeyPatch):
    x, weights = torch.randn(4, 5, 12)[..., :6], torch.randn(4, 7, 12)[..., 6:]
    biases = torch.randn(4, 7) if biased else None
    exact = [a @ b.t() + (biases[n] if biases is not None else 0) for n, (a, b) in enumerate(zip(x, weights, strict=True))]
    for smallest in (0, 2**60):
        monkeypatch.setattr(products, "SMALLEST", smallest)
        torch.testing.assert_close(products.linears(x, weights, biases), exact)


def test_onednn_is_not_used_for_other_formats_devices_small_products_or_where_it_is_switched_off():
    x, large = torch.randn(3, 4), products.SMALLEST
    assert products.uses_onednn(x, large) == products.ONEDNN
    assert not products.uses_onednn(x, large - 1)
    assert not products.uses_onednn(x.t(), large)  # would be copied first
    assert not products.uses_onednn(x.double(), large)
    assert not products.uses_onednn(x.bfloat16(), large)
    assert not products.uses_onednn(x.to("meta"), large)
    with counting.plain_kernels():
        assert not products.uses_onednn(x, large)


def outputs_and_gradients(layer: LowRankLSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> list[Tensor]:
    outputs, (h, c) = layer(x, state)
    again, _ = layer(outputs, (h, c))  # the layer twice in one graph
    loss = again.square().sum() + (h * c).sum()
    return [outputs, h, c, again, *torch.autograd.grad(loss, [x, *state, *layer.parameters()])]


@needs_onednn
@given(time=st.integers(1, 5), batch=st.integers(1, 5), hidden=sizes, rank=st.integers(1, 9))
def test_the_layer_through_onednn_equals_itself_in_float64_and_repeats_to_the_bit(time: int, batch: int, hidden: int, rank: int):
    torch.manual_seed(time)
    layer = LowRankLSTM(hidden, hidden, rank)
    torch.nn.init.normal_(layer.bias)
    x, h, c = (torch.randn(*shape).requires_grad_() for shape in ((time, batch, hidden), (batch, hidden), (batch, hidden)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "SMALLEST", 0)
        ours, again = (outputs_and_gradients(layer, x, (h, c)) for _ in range(2))
    precise, *state = (tensor.detach().double().requires_grad_() for tensor in (x, h, c))
    exact = outputs_and_gradients(layer.double(), precise, (state[0], state[1]))
    for single, repeated, double in zip(ours, again, exact, strict=True):
        assert torch.equal(single, repeated)
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_graph_that_is_kept_gives_the_same_gradients_twice(always_onednn: None):
    layer, x, zero = LowRankLSTM(6, 6, 2), torch.randn(4, 3, 6, requires_grad=True), torch.zeros(3, 6)
    loss = layer(x, (zero, zero))[0].square().sum()
    wanted = [x, *layer.parameters()]
    first, second = torch.autograd.grad(loss, wanted, retain_graph=True), torch.autograd.grad(loss, wanted)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("smallest", [0, 2**60])
def test_gradients_without_some_outputs_and_with_frozen_parts(smallest: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "SMALLEST", smallest)
    layer, x, zero = LowRankLSTM(6, 6, 2), torch.randn(4, 3, 6), torch.zeros(3, 6)
    layer.u_ih.requires_grad_(False)
    layer(x, (zero, zero))[1][1].sum().backward()
    assert layer.u_ih.grad is None
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in layer.named_parameters() if name != "u_ih")


def test_gradients_agree_with_finite_differences():
    layer = LowRankLSTM(4, 3, 2).double()
    x, h, c = (torch.randn(*shape, dtype=torch.double).requires_grad_() for shape in ((3, 2, 4), (2, 3), (2, 3)))

    def run(x: Tensor, h: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        outputs, state = layer(x, (h, c))
        return outputs, *state

    assert torch.autograd.gradcheck(run, (x, h, c, *layer.parameters()))


def test_products_that_onednn_would_compute_are_counted_all_the_same(always_onednn: None):
    model = LanguageModel(vocabulary=50, hidden=8, layers=1, dropout=0.0)
    lowrank.factorise(model, {"lstm.0": 2})
    counted = counting.macs(model, torch.tensor([[0]]))
    assert (counted["lstm.0"], counted["decoder"]) == (2 * 4 * 2 * (8 + 8), 50 * 8)
