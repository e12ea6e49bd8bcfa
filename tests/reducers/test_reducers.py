"""What each reducer guarantees, as far as one process can test it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Reducer
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.lowrank import choose, factorise
from pufferfish_bench.lowrank.lstm import LowRankLSTM
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.reducers import bits, powersgd, sbq, signum, topk
from pufferfish_bench.reducers.flat import Flat, views
from pufferfish_bench.reducers.powersgd import PowerSGD, multiply, orthogonalise
from pufferfish_bench.training.optimizers import PowerSGDMomentum
from pufferfish_bench.training.stopwatch import Stopwatch
from tests.support.nets import TinyNet
from tests.support.reducers import REDUCERS, attached, backward, reducer_named

FLAT = [name for name in REDUCERS if not name.startswith("ddp") and name not in ("allreduce", "none")]
HYBRID = {"keep": ["conv1", "*.shortcut.*", "linear"], "first": "layer1.1.conv1", "rank_ratio": 0.25, "ranks": None}


def give(model: nn.Module, reducer: Reducer, seed: int) -> dict[str, Tensor]:
    """A backward pass with random gradients."""
    random = torch.Generator().manual_seed(seed)
    given = {name: torch.randn(p.shape, generator=random) for name, p in model.named_parameters()}
    backward(reducer, model, given)
    return given


def gradients(model: nn.Module) -> Tensor:
    """All gradients as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def reduce(reducer: Reducer) -> None:
    with reducer.watch.step():
        reducer.reduce()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_views_of_one_buffer_in_the_memory_format_of_their_parameters(memory_format: torch.memory_format):
    model = TinyNet().to(memory_format=memory_format)
    reducer = attached("fp16", model)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    buffer = reducer.gradient.untyped_storage().data_ptr()
    assert all(p.grad.untyped_storage().data_ptr() == buffer and p.grad.stride() == p.stride() for p in model.parameters())
    plain = TinyNet()
    plain.load_state_dict(model.state_dict())
    assert reducer.gradient.numel() == sum(p.numel() for p in plain.parameters())
    before = reducer.gradient.clone()
    reducer.clear(None)
    assert before.any()
    assert not reducer.gradient.any()
    assert all(not p.grad.any() for p in model.parameters())


def test_a_step_with_the_flat_buffer_equals_a_step_of_a_plain_optimizer():
    torch.manual_seed(0)
    models = [TinyNet().eval(), TinyNet().eval()]
    models[1].load_state_dict(models[0].state_dict())
    flat = Flat(measure_wait=False, world=single_process(), watch=Stopwatch(device=torch.device("cpu"), untimed_steps=0))
    reducers = [Reducer(world=single_process(), watch=None), flat]
    for model, reducer in zip(models, reducers, strict=True):
        reducer.attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            reducer.clear(optimizer)
            model(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(*(model.parameters() for model in models), strict=True))


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_unpacking_restores_packed_booleans(answers: list[bool]):
    packed = bits.pack(torch.tensor(answers))
    assert packed.dtype == torch.uint8
    assert len(packed) == bits.packed_size(len(answers)) == -(-len(answers) // 8)
    found = torch.full((len(answers),), -1)
    for place, plane in bits.planes(packed, len(answers)):
        found[place] = plane.long()
    assert found.tolist() == answers


@given(st.integers(1, 40), st.integers(1, 30), st.floats(0, 1), st.integers(0, 41), st.integers(0, 2**30))
def test_counting_in_packed_form_equals_counting_unpacked_values(vectors: int, size: int, share: float, number: int, seed: int):
    values = torch.rand(vectors, size, generator=torch.Generator().manual_seed(seed)) < share
    digits = bits.count(torch.stack([bits.pack(vector) for vector in values]))
    assert len(digits) == vectors.bit_length()
    number = min(number, vectors)
    counted, greater, equal = torch.zeros(size, dtype=torch.int64), torch.empty(size), torch.empty(size)
    for place, digit in enumerate(digits):
        for part, plane in bits.planes(digit, size):
            counted[part] += plane.long() << place
    for packed, found in zip(bits.compare(digits, number), (greater, equal), strict=True):
        for part, plane in bits.planes(packed, size):
            found[part] = plane.float()
    assert torch.equal(counted, values.sum(0))
    assert torch.equal(greater.bool(), counted > number)
    assert torch.equal(equal.bool(), counted == number)


@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**30))
def test_the_majority_vote_is_the_sign_of_the_sum_of_signs(ranks: int, count: int, seed: int):
    momenta = torch.randn(ranks, count, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(count)
    signum.vote(torch.stack([bits.pack(momentum < 0) for momentum in momenta]), out=out)
    assert torch.equal(out, momenta.sign().sum(0).sign())


def test_signum_follows_a_moving_average_that_starts_from_the_first_gradient():
    model = TinyNet()
    reducer = attached("signum", model, momentum=0.9)
    first = give(model, reducer, 1)
    reduce(reducer)
    second = give(model, reducer, 2)
    reduce(reducer)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, (0.9 * first[name] + 0.1 * second[name]).sign())


def test_stochastic_binary_quantisation_is_unbiased_and_has_two_values():
    gradient = torch.tensor([-1.0, -0.5, 0.0, 0.25, 3.0])
    random = torch.Generator().manual_seed(0)
    draws = torch.empty(20_000, 5)
    sbq.decode(sbq.encode(gradient.repeat(20_000), random)[None], out=draws.view(-1))
    assert set(draws.unique().tolist()) == {-1.0, 3.0}
    assert draws.mean(0) == pytest.approx(gradient, abs=0.05)  # 3.5 standard errors


def test_decoding_several_ranks_gives_the_mean_of_their_quantised_gradients():
    gradients = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [5.0], [20.0]])
    random = torch.Generator().manual_seed(1)
    messages = torch.stack([sbq.encode(gradient, random) for gradient in gradients])
    parts = torch.empty(3, 100)
    for message, part in zip(messages, parts, strict=True):
        sbq.decode(message[None], out=part)
    together = torch.empty(100)
    sbq.decode(messages, out=together)
    assert together == pytest.approx(parts.mean(0), abs=1e-5)


@given(st.integers(1, 4), st.integers(0, 2**30))
def test_the_sparse_mean_equals_the_mean_of_the_dense_vectors(ranks: int, seed: int):
    random = torch.Generator().manual_seed(seed)
    dense, messages = torch.zeros(ranks, 30), []
    for vector in dense:
        places = torch.randperm(30, generator=random)[:7].int()
        values = torch.randn(7, generator=random)
        vector[places.long()] = values
        messages.append(torch.cat([places.view(torch.uint8), values.view(torch.uint8)]))
    out = torch.randn(30)
    topk.decode(torch.stack(messages), out=out)
    assert out == pytest.approx(dense.mean(0), abs=1e-6)


@pytest.mark.parametrize("name", ["powersgd", "topk"])
def test_error_feedback_loses_nothing(name: str):
    model = TinyNet()
    reducer = attached(name, model)
    totals = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}
    for seed in range(5):
        given = give(model, reducer, seed)
        reduce(reducer)
        for name, parameter in model.named_parameters():
            totals[parameter] += given[name] - parameter.grad
    holders = getattr(reducer, "compressed", reducer.parameters)
    held = dict(zip(holders, views(holders, reducer.error), strict=True))
    assert reducer.error.abs().sum() > 1  # something was left out
    for parameter, total in totals.items():
        assert total.detach() == pytest.approx(held.get(parameter, torch.zeros(())).expand_as(total), abs=1e-4)


def test_topk_sends_the_largest_entries():
    model = TinyNet()
    reducer = attached("topk", model, share=0.05)
    give(model, reducer, 0)
    before = reducer.gradient.clone()
    reduce(reducer)
    sent = reducer.gradient != 0
    assert int(sent.sum()) == int(0.05 * len(before))
    assert before[sent].abs().min() >= before[~sent].abs().max()
    assert torch.equal(reducer.gradient[sent], before[sent])


@pytest.mark.parametrize("rank", [1, 2, 3, 6])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_powersgd_equals_the_plain_algorithm_whatever_happens_to_the_gradients_after_it(
    rank: int, memory_format: torch.memory_format
):
    model = TinyNet().to(memory_format=memory_format)
    reducer = attached("powersgd", model, rank=rank)
    places = {parameter: place for place, parameter in enumerate(reducer.compressed)}
    columns = [parameter[0].numel() for parameter in reducer.compressed]
    starts = [part.view(rank, -1).t() for part in reducer.second.clone().split([rank * count for count in columns])]
    errors = [torch.zeros(len(parameter), count) for parameter, count in zip(reducer.compressed, columns, strict=True)]
    for step in range(6):
        given = {name: torch.randn(p.shape) for name, p in model.named_parameters()}
        used = {name: gradient for name, gradient in given.items() if step != 3 or name != "fc1.weight"}
        backward(reducer, model, used)
        reduce(reducer)
        for name, parameter in model.named_parameters():
            gradient = used.get(name, torch.zeros(parameter.shape))
            if parameter in places:
                place = places[parameter]
                dense = gradient.flatten(1) if memory_format == torch.contiguous_format else channels_at_the_end(gradient)
                matrix = dense + errors[place]
                p, _ = torch.linalg.qr(matrix @ starts[place])
                starts[place] = matrix.t() @ p
                sent = p @ starts[place].t()
                errors[place] = matrix - sent
                found = parameter.grad if memory_format == torch.contiguous_format else channels_at_the_end(parameter.grad)
                assert found.flatten(1) == pytest.approx(sent, abs=1e-3), (step, name)
            else:
                assert torch.equal(parameter.grad, gradient)
            parameter.grad.mul_(step % 3)  # clipping, or a mask: has no effect on the error
    assert all(error.norm() > 1 for error in errors)


def channels_at_the_end(gradient: Tensor) -> Tensor:
    """A gradient as a matrix whose columns are in the order of a channels-last buffer."""
    return (gradient.permute(0, 2, 3, 1) if gradient.ndim == 4 else gradient).flatten(1)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**30))
def test_a_product_of_two_factors_is_the_same_as_outer_products_and_as_a_matrix_product(
    count: int, rows: int, columns: int, rank: int, seed: int
):
    random = torch.Generator().manual_seed(seed)
    basis, q = torch.randn(count, rank, rows, generator=random), torch.randn(count, rank, columns, generator=random)
    out = torch.full((count, rows, columns), torch.nan)
    assert multiply(basis, q, out=out) is out
    assert out == pytest.approx(basis.transpose(1, 2) @ q, abs=1e-5)


def test_decoding_in_blocks_of_rows_equals_decoding_whole_matrices(monkeypatch: pytest.MonkeyPatch):
    found = []
    for size in (powersgd.BLOCK, 100, 1):
        monkeypatch.setattr(powersgd, "BLOCK", size)
        model = TinyNet()
        reducer = attached("powersgd", model)
        for seed in range(3):
            give(model, reducer, seed)
            reduce(reducer)
        found.append((len(reducer.blocks), gradients(model), reducer.error.clone()))
    assert found[0][0] < found[1][0] < found[2][0] == sum(group.matrices.shape[1] for group in reducer.groups)
    assert all(torch.equal(one, other) for part in (1, 2) for one, other in ((found[0][part], f[part]) for f in found[1:]))


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_powersgd_compresses_a_matrix_only_if_that_sends_fewer_numbers(rank: int, rows: int, columns: int):
    model = nn.Linear(columns, rows)
    reducer = attached("powersgd", model, rank=rank)
    assert reducer.first.numel() + reducer.second.numel() == min(rank * (rows + columns), rows * columns) + rows


def test_powersgd_without_a_compressible_matrix_sends_the_gradients_as_they_are():
    model = nn.Linear(3, 2)
    reducer = attached("powersgd", model, rank=2)
    given = give(model, reducer, 0)
    reduce(reducer)
    assert not reducer.groups
    assert all(torch.equal(p.grad, given[name]) for name, p in model.named_parameters())


def test_powersgd_has_as_much_memory_as_two_buffers_of_gradients():
    reducer = attached("powersgd", ResNet18(classes=10, width=0.25, stem_norm=False))
    tensors = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in vars(reducer).values() if isinstance(t, Tensor)
    }
    assert sum(tensors.values()) < 2.2 * reducer.gradient.nbytes


def test_powersgd_converges_to_the_best_approximation_of_a_constant_gradient():
    model = nn.Linear(20, 30, bias=False)
    reducer = attached("powersgd", model, rank=3)
    gradient = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    for _ in range(200):
        reducer.error.zero_()
        sent(model, reducer, gradient)
    U, S, Vh = torch.linalg.svd(gradient)
    assert model.weight.grad == pytest.approx((U[:, :3] * S[:3]) @ Vh[:3], abs=1e-3)


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**30))
def test_orthogonalised_columns_are_orthonormal(count: int, rows: int, columns: int, seed: int):
    columns = min(rows, columns)
    matrices = torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spanned = matrices.clone()
    orthogonalise(matrices)
    assert matrices.transpose(1, 2) @ matrices == pytest.approx(torch.eye(columns).expand(count, -1, -1).double(), abs=1e-4)
    projected = matrices @ (matrices.transpose(1, 2) @ spanned)
    assert projected == pytest.approx(spanned, abs=1e-4)


def test_a_gradient_of_zeros_stays_finite():
    model = TinyNet()
    reducer = attached("powersgd", model)
    for _ in range(2):
        reducer.clear(None)
        reduce(reducer)
        assert not gradients(model).any()


def layer(rank: int = 2) -> tuple[nn.Linear, PowerSGD]:
    model = nn.Linear(20, 30, bias=False)
    return model, attached("powersgd", model, rank=rank)


def product(rank: int, seed: int, rows: int = 30, columns: int = 20) -> Tensor:
    """A random matrix of the given rank."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, rank, generator=random) @ torch.randn(rank, columns, generator=random)


def sent(model: nn.Linear, reducer: Reducer, gradient: Tensor) -> Tensor:
    """The gradient after reduction."""
    backward(reducer, model, {"weight": gradient})
    reduce(reducer)
    return model.weight.grad.clone()


@pytest.mark.parametrize("steps", [1, 3])
def test_powersgd_behaves_like_a_fresh_reducer_after_zero_gradients(steps: int):
    (model, reducer), (_, new) = layer(), (other := layer())
    for _ in range(steps):
        assert not sent(model, reducer, torch.zeros(30, 20)).any()
    for seed in range(3):  # like a fresh reducer, error feedback included
        assert torch.equal(sent(model, reducer, product(9, seed)), found := sent(other[0], new, product(9, seed)))
        assert torch.equal(reducer.error, new.error)
        assert found.norm() > 1


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_powersgd_reproduces_a_gradient_of_its_rank_after_one_of_a_lower_rank(scale: float, steps: int):
    model, reducer = layer()
    for _ in range(steps):
        first = scale * product(1, 0)
        assert sent(model, reducer, first) == pytest.approx(first, abs=1e-5 * scale)
        reducer.error.zero_()
    for seed in (1, 2):
        second = scale * product(2, seed)
        assert sent(model, reducer, second) == pytest.approx(second, abs=1e-3 * scale)
        reducer.error.zero_()


def test_a_direction_below_the_noise_is_sent_once_error_feedback_has_accumulated_it():
    model, reducer = layer()
    weak = 1e-5 * product(1, 1)
    gradient = product(1, 0) + weak
    total = sum(sent(model, reducer, gradient).double() for _ in range(100))
    missing = 100 * gradient.double() - total
    assert missing.norm() < 0.25 * 100 * weak.norm()


def test_a_resume_after_columns_became_zero_gives_the_same_bits():
    gradients = [torch.zeros(30, 20), product(1, 0), product(1, 0), product(9, 1), product(9, 2)]
    whole = layer()
    expected = [sent(*whole, gradient) for gradient in gradients]
    for cut in range(1, len(gradients)):
        before, after = layer(), layer()
        for gradient in gradients[:cut]:
            sent(*before, gradient)
        after[1].load_state_dict(before[1].state_dict())
        left = [sent(*after, gradient) for gradient in gradients[cut:]]
        assert all(torch.equal(one, other) for one, other in zip(left, expected[cut:], strict=True))


def test_linearly_dependent_columns_become_zero_and_are_reported():
    random = torch.Generator().manual_seed(0)
    matrices = torch.randn(2, 12, 3, generator=random)
    matrices[0, :, 1] = 3 * matrices[0, :, 0]
    matrices[1, :, 2] = 0
    dead = orthogonalise(matrices)
    assert dead.squeeze(1).tolist() == [[False, True, False], [False, False, True]]
    assert matrices.transpose(1, 2) @ matrices == pytest.approx(torch.diag_embed(1.0 - dead.squeeze(1).float()), abs=1e-5)


def test_powersgd_compresses_the_factors_of_a_low_rank_lstm_gate_by_gate():
    lstm = LowRankLSTM(inputs=12, hidden=10, rank=3)
    reducer = attached("powersgd", lstm, rank=2)
    factors = {name: p for name, p in lstm.named_parameters() if name != "bias"}
    plain = {name: [nn.Linear(*matrix.shape[::-1], bias=False) for matrix in p] for name, p in factors.items()}
    singles = {name: [(part, attached("powersgd", part, rank=2)) for part in parts] for name, parts in plain.items()}
    shapes = [(3, 12), (10, 3), (3, 10), (10, 3)]
    assert reducer.first.numel() == 4 * (sum(2 * rows for rows, _ in shapes) + 10)  # biases are sent uncompressed
    assert reducer.second.numel() == 4 * sum(2 * columns for _, columns in shapes)
    for _ in range(30):  # until the random start is forgotten
        reducer.error.zero_()
        given = give(lstm, reducer, 0)
        reduce(reducer)
        for name, parts in singles.items():
            for (part, single), gradient in zip(parts, given[name], strict=True):
                single.error.zero_()
                sent(part, single, gradient)
    assert torch.equal(lstm.bias.grad, given["bias"])
    for name, parts in singles.items():
        for gate, (part, _) in enumerate(parts):
            assert lstm.get_parameter(name).grad[gate] == pytest.approx(part.weight.grad, abs=1e-2), (name, gate)


def test_a_convolution_of_one_dimension_is_one_matrix():
    reducer = attached("powersgd", nn.Conv1d(5, 7, 3), rank=2)
    assert (reducer.first.numel(), reducer.second.numel()) == (2 * 7 + 7, 2 * 15)


@pytest.mark.parametrize(
    ("hybrid", "rank", "floats"),
    [(False, 2, 82_132), (False, 4, 154_782), (True, 2, 85_844), (True, 4, 162_206)],
)
def test_powersgd_on_resnet18_sends_as_much_as_the_authors_count(hybrid: bool, rank: int, floats: int):
    model = ResNet18(classes=10, width=1.0, stem_norm=False)
    if hybrid:
        with torch.no_grad():
            factorise(model, choose(model, **HYBRID).ranks)
    reducer = attached("powersgd", model, rank=rank)
    assert isinstance(reducer, PowerSGD)
    assert reducer.first.numel() + reducer.second.numel() == floats


@pytest.mark.parametrize("name", FLAT)
def test_every_reducer_restores_its_state(name: str):
    model = TinyNet()

    def go(reducer: Reducer, seeds: range) -> None:
        for seed in seeds:
            give(model, reducer, seed)
            reduce(reducer)

    whole = attached(name, model)
    go(whole, range(4))
    expected = gradients(model)
    first = attached(name, model)
    go(first, range(2))
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in first.state_dict().items()}
    second = attached(name, model)
    second.load_state_dict(state)
    go(second, range(2, 4))
    assert torch.equal(gradients(model), expected)


def test_signum_refuses_an_optimizer_with_momentum_and_clipping():
    reducer = reducer_named("signum")(world=single_process(), watch=None)
    parameters = [nn.Parameter(torch.zeros(1))]
    reducer.check(torch.optim.SGD(parameters, lr=0.1), None)
    powersgds = PowerSGDMomentum(parameters, lr=0.1, momentum=0.9)
    for optimizer in (torch.optim.SGD(parameters, lr=0.1, momentum=0.9), torch.optim.Adam(parameters), powersgds):
        with pytest.raises(InputError, match="momentum of its own"):
            reducer.check(optimizer, None)
    with pytest.raises(InputError, match=r"clip_norm=0\.25"):
        reducer.check(torch.optim.SGD(parameters, lr=0.1), 0.25)


def test_an_infinite_gradient_stays_in_error_feedback_so_loss_scaling_is_not_supported():
    """AMP's loss scaler assumes that a skipped step leaves no trace; with error feedback it leaves one."""
    model = TinyNet()
    reducer = attached("powersgd", model)
    give(model, reducer, 0)
    reducer.gradient[0] = torch.inf
    reduce(reducer)
    give(model, reducer, 1)
    reduce(reducer)
    assert not gradients(model).isfinite().all()
    assert not reducer.supports_loss_scaling


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("powersgd", {"rank": 0}, "reducer.rank=0"),
        ("signum", {"momentum": 1.0}, "reducer.momentum=1.0"),
        ("topk", {"share": 0.0}, "reducer.share=0.0"),
        ("ddp", {}, "torchrun"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(name: str, changes: dict, word: str):
    model = TinyNet()
    with pytest.raises(InputError, match=word):
        reducer_named(name, **changes)(world=single_process(), watch=None).check(torch.optim.SGD(model.parameters()), None)
