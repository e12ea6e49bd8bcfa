"""PowerSGD (Vogels et al., 2019): each gradient matrix as a product of two thin ones, by one power iteration per step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.core import Message
from pufferfish_bench.reducers.flat import Flat, views

# A column of P whose norm shrinks below this fraction when it is orthogonalised against the others is rounding noise: a
# single-precision product is exact to about 1e-6. A direction that is really so weak is not lost: error feedback accumulates it.
NOISE = 1e-4


BLOCK = 2**20  # numbers that are decoded at a time: 4 MB
OUTER_PRODUCTS_UP_TO = 4  # up to this rank, a sum of outer products is faster on a CPU than a matrix product


@dataclass(frozen=True)
class Group:
    """Matrices of one shape, adjacent in the flat buffer, and their factors P and Q; views of larger buffers, except `basis`.

    Q and the orthonormal P are stored transposed: a product with a few long rows is several times as fast as one with columns.
    """

    matrices: Tensor  # (count, rows, columns): gradient plus error, then the new error
    update: Tensor  # (count, rows, columns): PQ', what the optimizer gets
    p: Tensor  # (count, rows, rank)
    basis: Tensor  # (count, rank, rows): orthonormal P
    q: Tensor  # (count, rank, columns)
    fresh_q: Tensor  # (count, rank, columns): random, replaces zero rows of `q`

    def blocks(self) -> Iterator["Group"]:
        """The same matrices in blocks of rows that stay in the cache while they are decoded."""
        count, rows, columns = self.matrices.shape
        size = max(1, BLOCK // (count * columns))
        for first in range(0, rows, size):
            part = slice(first, first + size)
            yield replace(self, matrices=self.matrices[:, part], update=self.update[:, part], basis=self.basis[:, :, part])


class PowerSGD(Flat):
    """Sends P = MQ and Q = M'P of each gradient matrix M, and other gradients uncompressed: two messages per step.

    The compression error is added to the next gradient (error feedback), and the next power iteration starts from Q (warm start).
    A zero column of Q (the gradient is zero, or has a lower rank) would stay zero for ever: it is replaced by a random one.

    The error stays where the backward pass accumulates, which adds the next gradient to it. What the optimizer gets is in a
    buffer of its own: `.grad` of a matrix points to that one from `reduce` to the next `clear`.

    A parameter is one matrix: its first dimension by all others. A module whose parameters are stacks of matrices names them
    in `stacked_parameters`: each matrix of a stack is compressed separately. A matrix whose P and Q are not smaller than itself
    is sent uncompressed.
    """

    supports_loss_scaling = False  # error feedback would mix scales, or stay infinite

    def __init__(self, *, rank: Count, seed: int, **how: Any):
        super().__init__(**how)
        if rank < 1:
            raise InputError(f"reducer.rank={rank} must be at least 1")
        self.rank = rank
        self.seed = seed

    def buffer_order(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Compressed matrices first, grouped by shape; then the rest."""
        return sorted(parameters, key=lambda parameter: (not self.matrices_of(parameter), self.matrices_of(parameter)[:1]))

    def matrices_of(self, parameter: nn.Parameter) -> list[tuple[int, int]]:
        """(rows, columns) of each matrix in a gradient; empty if it is sent uncompressed."""
        count, *shape = parameter.shape if id(parameter) in self.stacked else (1, *parameter.shape)
        rows, columns = (*shape[:1], math.prod(shape[1:])) if shape else (1, 1)
        return [(rows, columns)] * count if self.rank * (rows + columns) < rows * columns else []

    def attach(self, model: nn.Module) -> nn.Module:
        stacks = ((module, name) for module in model.modules() for name in getattr(module, "stacked_parameters", ()))
        self.stacked = {id(getattr(module, name)) for module, name in stacks}
        module = super().attach(model)
        shapes = [shape for parameter in self.parameters for shape in self.matrices_of(parameter)]
        matrix_part = sum(rows * columns for rows, columns in shapes)
        self.error, self.rest = self.gradient[:matrix_part], self.gradient[matrix_part:]
        self.update = torch.zeros_like(self.error)
        self.compressed = [parameter for parameter in self.parameters if self.matrices_of(parameter)]
        self.accumulated, self.updates = (list(views(self.compressed, buffer)) for buffer in (self.error, self.update))
        p_size = self.rank * sum(rows for rows, _ in shapes)
        # the first message: all P, then the uncompressed gradients
        self.first = self.gradient.new_zeros(p_size + len(self.rest))
        self.uncompressed = self.first[p_size:]
        start = torch.Generator().manual_seed(self.seed)  # the same on all ranks, and after a resume
        self.fresh = torch.randn(self.rank * sum(columns for _, columns in shapes), generator=start).to(self.gradient)
        self.second = self.fresh.clone()
        self.groups = list(self.grouped(shapes))
        self.blocks = [block for group in self.groups for block in group.blocks()]
        return module

    def grouped(self, shapes: list[tuple[int, int]]) -> Iterator[Group]:
        place = p_place = q_place = 0
        for (rows, columns), group in groupby(shapes):
            count = len(list(group))
            end = place + count * rows * columns
            p_end, q_end = p_place + count * rows * self.rank, q_place + count * columns * self.rank
            yield Group(
                matrices=self.error[place:end].view(count, rows, columns),
                update=self.update[place:end].view(count, rows, columns),
                p=self.first[p_place:p_end].view(count, rows, self.rank),
                basis=self.first.new_zeros(count, self.rank, rows),
                q=self.second[q_place:q_end].view(count, self.rank, columns),
                fresh_q=self.fresh[q_place:q_end].view(count, self.rank, columns),
            )
            place, p_place, q_place = end, p_end, q_end

    def clear(self, optimizer: Optimizer) -> None:
        """Let the backward pass accumulate on the error; only the uncompressed gradients start from zero."""
        self.rest.zero_()
        for parameter, accumulated in zip(self.compressed, self.accumulated, strict=True):
            parameter.grad = accumulated

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            for group in self.groups:
                torch.bmm(group.matrices, group.q.transpose(1, 2), out=group.p)
            self.uncompressed.copy_(self.rest)
        self.wait_for_all()
        sent = self.allreduce(self.first)
        with self.watch("encode"):
            zero = []
            for group in self.groups:
                zero.append(orthogonalise(group.basis.copy_(group.p.transpose(1, 2)).transpose(1, 2)))
                torch.bmm(group.basis, group.matrices, out=group.q)
        if self.groups:
            sent += self.allreduce(self.second)
        with self.watch("decode"):
            self.second /= self.world.size
            for block in self.blocks:
                block.matrices.sub_(multiply(block.basis, block.q, out=block.update))
            for group, columns in zip(self.groups, zero, strict=True):  # unconditionally: a check would wait for the GPU
                torch.where(columns.transpose(1, 2), group.fresh_q, group.q, out=group.q)
            torch.div(self.uncompressed, self.world.size, out=self.rest)
            for parameter, update in zip(self.compressed, self.updates, strict=True):
                parameter.grad = update
        return sent

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error, "q": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error.copy_(state["error"])
        self.second.copy_(state["q"])


def multiply(basis: Tensor, q: Tensor, *, out: Tensor) -> Tensor:
    """PQ' from transposed P (count, rank, rows) and Q (count, rank, columns), into `out`."""
    if not out.is_cpu or basis.shape[1] > OUTER_PRODUCTS_UP_TO:
        return torch.bmm(basis.transpose(1, 2), q, out=out)
    torch.mul(basis[:, 0, :, None], q[:, 0, None, :], out=out)
    for place in range(1, basis.shape[1]):
        out.addcmul_(basis[:, place, :, None], q[:, place, None, :])
    return out


def orthogonalise(matrices: Tensor) -> Tensor:
    """Make the columns of each matrix orthonormal, in place: Gram-Schmidt, all matrices at once.

    A column that depends on those before it becomes zero. Returns which ones did: (count, 1, columns).
    """
    least = NOISE * matrices.norm(dim=-2, keepdim=True)
    norms = torch.empty_like(least)
    for place in range(matrices.shape[-1]):
        column, norm = matrices[..., place : place + 1], norms[..., place : place + 1]
        torch.linalg.vector_norm(column, dim=-2, keepdim=True, out=norm)
        norm.masked_fill_(norm <= least[..., place : place + 1], torch.inf)
        column /= norm
        if place + 1 < matrices.shape[-1]:
            others = matrices[..., place + 1 :]
            others -= column * (column * others).sum(dim=-2, keepdim=True)
    return norms.isinf()
