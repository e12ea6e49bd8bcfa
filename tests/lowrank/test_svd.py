"""The truncated SVD through the Gram matrix equals torch's, and falls back to it where it would not be accurate."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from tests.support.solvers import Solvers

SPECTRA = {
    "flat": lambda n: torch.ones(n),
    "fast decay": lambda n: 0.5 ** torch.arange(min(n, 14)),
    "slow decay": lambda n: 1 / torch.arange(1.0, n + 1),
    "clustered": lambda n: 1 + (torch.arange(n) < n // 2) + 1e-4 * torch.arange(n).flip(0),
    "ill-conditioned": lambda n: 0.1 ** torch.arange(n),  # the last ones vanish when the matrix is rounded to float32
    "rank deficient": lambda n: 1 / torch.arange(1.0, max(1, n // 3) + 1),
    "zero": lambda n: torch.zeros(n),
}


def with_spectrum(rows: int, columns: int, spectrum: str, seed: int) -> Tensor:
    """A float32 matrix with these singular values and random singular vectors."""
    torch.manual_seed(seed)
    values = SPECTRA[spectrum](min(rows, columns)).double()
    left, right = (torch.linalg.qr(torch.randn(side, len(values), dtype=torch.float64))[0] for side in (rows, columns))
    return (left * values @ right.t()).float()


def assert_close(found: Tensor, expected: Tensor, tolerance: float, words: str) -> None:
    assert float((found.double() - expected.double()).abs().max()) <= tolerance, words


@st.composite
def matrices(draw) -> tuple[Tensor, int]:
    """A matrix that is clearly not square, tall or wide, and a rank."""
    short = draw(st.integers(1, 40))
    long = draw(st.integers(-(-3 * short // 2), 4 * short))
    shape = (short, long) if draw(st.booleans()) else (long, short)
    matrix = with_spectrum(*shape, draw(st.sampled_from(sorted(SPECTRA))), draw(st.integers(0, 99)))
    return matrix * draw(st.sampled_from([1e-12, 1.0, 1e6])), draw(st.integers(1, short))


@given(matrices())
def test_factors_of_any_matrix_and_spectrum_are_the_truncated_svd_to_float32_accuracy(case: tuple[Tensor, int]):
    matrix, rank = case
    u, v, kept = lowrank.truncated_svd(matrix, rank)
    singular = torch.linalg.svdvals(matrix.double())
    largest = float(singular[0])
    assert u.dtype == v.dtype == torch.float32
    # the factors share the singular values, and their rows and columns are orthogonal
    assert_close(u @ u.t(), torch.diag(singular[:rank]), 2e-6 * largest, "u")
    assert_close(v.t() @ v, torch.diag(singular[:rank]), 2e-6 * largest, "v")
    # no product of this rank is closer
    error = (matrix.double() - v.double() @ u.double()).norm()
    assert float(error) == pytest.approx(float(singular[rank:].norm()), abs=1e-5 * largest)
    energy = float(singular.square().sum())
    assert kept == pytest.approx(float(singular[:rank].square().sum()) / energy if energy else 1.0, abs=1e-6)
    assert kept <= 1


@given(
    tall=st.booleans(), seed=st.integers(0, 99), rank=st.integers(1, 12), spectrum=st.sampled_from(["fast decay", "slow decay"])
)
def test_each_pair_of_vectors_is_that_of_torchs_svd_up_to_its_sign(tall: bool, seed: int, rank: int, spectrum: str):
    matrix = with_spectrum(*((60, 12) if tall else (12, 60)), spectrum, seed)
    u, v, _ = lowrank.truncated_svd(matrix, rank)
    U, S, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    signs = (u.double() * Vh[:rank]).sum(1).sign()
    root = S[:rank].sqrt()
    for number in range(rank):
        assert_close(u[number], signs[number] * root[number] * Vh[number], 1e-6, f"row {number} of u")
        assert_close(v[:, number], signs[number] * root[number] * U[:, number], 1e-6, f"column {number} of v")


@pytest.mark.parametrize(
    ("matrix", "rank", "exact"),
    [
        pytest.param(torch.randn(20, 64), 20, False, id="random"),
        pytest.param(torch.randn(64, 20), 5, False, id="tall"),
        pytest.param(with_spectrum(20, 64, "rank deficient", 0), 6, False, id="rank deficient, kept up to its rank"),
        pytest.param(with_spectrum(20, 64, "rank deficient", 0), 12, True, id="rank deficient, kept beyond its rank"),
        pytest.param(with_spectrum(64, 20, "rank deficient", 0), 12, True, id="tall and rank deficient"),
        pytest.param(with_spectrum(20, 64, "ill-conditioned", 0), 5, False, id="ill-conditioned, large values kept"),
        pytest.param(with_spectrum(20, 64, "ill-conditioned", 0), 12, True, id="ill-conditioned, tiny values kept"),
        pytest.param(torch.zeros(10, 64), 3, True, id="zero"),
        pytest.param(torch.randn(20, 20), 5, True, id="square"),
        pytest.param(torch.randn(20, 29), 5, True, id="almost square"),
        pytest.param(torch.randn(20, 30), 5, False, id="clearly not square"),
        pytest.param(torch.randn(20, 64, dtype=torch.float64), 5, True, id="float64"),
        pytest.param(torch.randn(20, 64).bfloat16(), 5, False, id="bfloat16"),
    ],
)
def test_torchs_svd_is_used_exactly_where_the_gram_matrix_is_slower_or_not_accurate(matrix: Tensor, rank: int, exact: bool):
    with Solvers() as solvers:
        u, v, _ = lowrank.truncated_svd(matrix, rank)
    assert ("_linalg_svd" in solvers.names) == exact
    assert u.isfinite().all()
    assert v.isfinite().all()


@pytest.mark.parametrize("matrix", [with_spectrum(20, 64, "rank deficient", 1), with_spectrum(20, 64, "ill-conditioned", 1)])
@pytest.mark.parametrize("tall", [False, True])
def test_vectors_of_vanishing_singular_values_are_still_orthogonal(matrix: Tensor, tall: bool):
    u, v, _ = lowrank.truncated_svd(matrix.t() if tall else matrix, 10)
    for rows in (u.double(), v.t().double()):
        unit = rows / rows.norm(dim=1, keepdim=True)
        assert_close(unit @ unit.t(), torch.eye(10), 1e-5, "not orthogonal")


def test_float64_weights_are_factorised_to_double_precision():
    weight = torch.randn(12, 40, dtype=torch.float64)
    u, v, _ = lowrank.truncated_svd(weight, 12)
    assert_close(v @ u, weight, 1e-13, "the product of full rank")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("shape", [(4, 5), (4, 50), (50, 4)])
def test_a_single_value_that_is_not_finite_is_reported_as_divergence(shape: tuple[int, int], value: float):
    weight = torch.randn(shape)
    weight[2, 3] = value
    with pytest.raises(InputError, match="diverged"):
        lowrank.truncated_svd(weight, 2)


class SolverFails(TorchDispatchMode):
    """The first `failures` calls of a solver fail to converge, as a GPU's may."""

    def __init__(self, failures: int):
        super().__init__()
        self.failures = failures

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("_linalg_eigh", "_linalg_svd") and self.failures > 0:
            self.failures -= 1
            raise torch.linalg.LinAlgError("failed to converge")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("failures", [1, 2])
def test_where_a_solver_does_not_converge_the_next_one_gives_the_same_factors(failures: int):
    matrix = with_spectrum(12, 60, "slow decay", 3)
    u, v, kept = lowrank.truncated_svd(matrix, 4)
    with SolverFails(failures):
        other_u, other_v, other_kept = lowrank.truncated_svd(matrix, 4)
    assert_close(other_v @ other_u, v @ u, 1e-6, "product")
    assert other_kept == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize("layer", [torch.nn.Conv2d(6, 8, 3), torch.nn.Linear(30, 8), lowrank.lstm.LSTM(9, 6)])
def test_factorisation_draws_no_random_numbers(layer: lowrank.Layer):
    before = torch.get_rng_state()
    factored, _ = lowrank.factorise_layer(layer, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.isfinite().all() for parameter in factored.parameters())


def test_the_estimated_work_of_a_layer_counts_all_its_matrices():
    linear, conv = torch.nn.Linear(90, 10), torch.nn.Conv2d(10, 10, 3)
    assert lowrank.factorisation_work(linear) == lowrank.factorisation_work(conv) > 0
    square = torch.nn.Linear(10, 10)
    assert lowrank.factorisation_work(lowrank.lstm.LSTM(10, 10)) == 8 * lowrank.factorisation_work(square)
