"""The truncated SVD of one matrix.

A matrix that is clearly not square is factorised through its Gram matrix (of the shorter side) in double precision: the vectors
of the shorter side are eigenvectors, and one product gives those of the longer side, of the kept rank only. Double precision
makes up for the squared condition number of a float32 matrix, unless a kept singular value is tiny. That is checked, and the
matrix then goes to torch's SVD like all others.
"""

import torch
from torch import Tensor

from pufferfish_bench.base.errors import InputError

CLEARLY_NOT_SQUARE = 1.5  # aspect ratio from which the Gram matrix pays
ORTHONORMAL = 1e-6  # allowed error of the products of singular vectors: what float32 solvers reach
BLOCK = 128  # rows of the Gram matrix computed at once


def truncated_svd(weight: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """The best factors u (rank, in) and v (out, rank) of a matrix, and the fraction of its energy they keep."""
    if weight.is_meta:  # has a shape, but no values to read
        inputs = weight.shape[1:].numel()
        return weight.new_empty(rank, inputs), weight.new_empty(len(weight), rank), 1.0
    return computed_svd(weight, rank)


def computed_svd(weight: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """The same from the values of the matrix."""
    matrix = weight.detach().flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    through_gram = matrix.dtype == torch.float32 and max(matrix.shape) >= CLEARLY_NOT_SQUARE * min(matrix.shape)
    U, S, Vh, energy = (gram_svd(matrix, rank) if through_gram else None) or full_svd(matrix, rank)
    root = S.sqrt()
    v = U * root  # (out, rank): each factor takes sqrt(S)
    u = root[:, None] * Vh  # (rank, in)
    kept = min(1.0, float(S.double().square().sum()) / energy) if energy > 0 else 1.0
    return u.to(weight.dtype), v.to(weight.dtype), kept


def full_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """U, S and Vh up to `rank` by torch's SVD, and the sum of all squared singular values."""
    if not matrix.isfinite().all():  # solvers may return NaN instead of failing
        raise InputError("the weights are not finite: training had diverged before the factorisation")
    try:
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:  # a GPU's solver may fail to converge where LAPACK does not
        U, S, Vh = (factor.to(matrix.device) for factor in torch.linalg.svd(matrix.cpu(), full_matrices=False))
    return U[:, :rank], S[:rank], Vh[:rank], float(S.double().square().sum())


def gram_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """As `full_svd`, in double precision through the Gram matrix; None if that is not accurate or the solver fails."""
    tall = matrix.shape[0] > matrix.shape[1]
    wide = (matrix.t() if tall else matrix).double()
    gram = lower_gram(wide)
    try:
        _, vectors = torch.linalg.eigh(gram)  # reads the lower triangle only; ascending
    except torch.linalg.LinAlgError:
        return None
    short = vectors[:, -rank:].flip(1)  # (short, rank)
    long = short.t() @ wide  # (rank, long): singular vectors times singular values
    S = long.norm(dim=1)
    long /= S[:, None]
    if not orthonormal(long):
        return None
    energy = float(gram.trace())  # the squared Frobenius norm
    return (long.t(), S, short.t(), energy) if tall else (short, S, long, energy)


def lower_gram(matrix: Tensor) -> Tensor:
    """The lower triangle of matrix @ matrix.T, by blocks of rows: about half the work of the whole product."""
    size = len(matrix)
    gram = matrix.new_zeros(size, size)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        torch.mm(matrix[start:stop], matrix[:stop].t(), out=gram[start:stop, :stop])
    return gram


def orthonormal(rows: Tensor) -> bool:
    """Whether rows are orthonormal to float32 accuracy. False if any is not finite, as after a division by zero."""
    error = rows @ rows.t() - torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    return bool(error.abs().max() <= ORTHONORMAL)  # False for NaN


def svd_work(shape: tuple[int, int]) -> int:
    """The time of the truncated SVD of a matrix of this shape in arbitrary units, to share layers out evenly."""
    short, long = sorted(shape)
    return short * short * (long + 6 * short)  # the Gram matrix, and a solver that is slower than a product
