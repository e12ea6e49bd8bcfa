"""PowerSGD (Vogels et al., 2019): each gradient matrix as a product of two thin ones, by one power iteration per step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.ranges import Count
from pufferfish_bench.core import Message
from pufferfish_bench.reducers.flat import Flat

# A column of P whose norm shrinks below this fraction when it is orthogonalised against the others is rounding noise: a
# single-precision product is exact to about 1e-6. A direction that is really so weak is not lost: error feedback accumulates it.
NOISE = 1e-4


@dataclass(frozen=True)
class Group:
    """Gradient matrices of one shape, adjacent in the flat buffer, with their factors P and Q."""

    matrices: Tensor  # (count, rows, columns); all five are views of larger buffers
    errors: Tensor  # (count, rows, columns): what was not sent
    p: Tensor  # (count, rows, rank)
    q: Tensor  # (count, columns, rank)
    fresh_q: Tensor  # (count, columns, rank): random columns that replace zero columns of Q


class PowerSGD(Flat):
    """Sends P = MQ and Q = M'P of each gradient matrix M, and other gradients uncompressed: two messages per step.

    The compression error is added to the next gradient (error feedback), and the next power iteration starts from Q (warm start).
    A zero column of Q (the gradient is zero, or has a lower rank) would stay zero for ever: it is replaced by a random one.

    A parameter is one matrix: its first dimension by all others. A module whose parameters are stacks of matrices names them
    in `stacked_parameters`: each matrix of a stack is compressed separately.
    """

    supports_loss_scaling = False  # error feedback would mix scales, or stay infinite

    def __init__(self, *, rank: Count, seed: int, **how: Any):
        super().__init__(**how)
        if rank < 1:
            raise InputError(f"reducer.rank={rank} must be at least 1")
        self.rank = rank
        self.seed = seed

    def buffer_order(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Matrices first, grouped by shape; then the rest."""
        return sorted(parameters, key=lambda parameter: (not self.matrices_of(parameter), self.matrices_of(parameter)[:1]))

    def matrices_of(self, parameter: nn.Parameter) -> list[tuple[int, int]]:
        """(rows, columns) of each matrix in a gradient; empty if it is sent uncompressed."""
        count, *shape = parameter.shape if id(parameter) in self.stacked else (1, *parameter.shape)
        return [(shape[0], math.prod(shape[1:]))] * count if len(shape) > 1 else []

    def attach(self, model: nn.Module) -> nn.Module:
        stacks = ((module, name) for module in model.modules() for name in getattr(module, "stacked_parameters", ()))
        self.stacked = {id(getattr(module, name)) for module, name in stacks}
        module = super().attach(model)
        shapes = [shape for parameter in self.parameters for shape in self.matrices_of(parameter)]
        self.matrix_part = sum(rows * columns for rows, columns in shapes)
        self.rest = self.gradient[self.matrix_part :]
        sizes = [(rows, columns, min(rows, columns, self.rank)) for rows, columns in shapes]
        p_size = sum(rows * rank for rows, _, rank in sizes)
        # the first message: all P, then the uncompressed gradients
        self.first = self.gradient.new_zeros(p_size + len(self.rest))
        start = torch.Generator().manual_seed(self.seed)  # the same on all ranks, and after a resume
        self.fresh = torch.randn(sum(columns * rank for _, columns, rank in sizes), generator=start).to(self.gradient)
        self.second = self.fresh.clone()
        self.error = torch.zeros_like(self.gradient[: self.matrix_part])
        self.groups = list(self.grouped(sizes))
        self.uncompressed = self.first[p_size:]
        return module

    def grouped(self, sizes: list[tuple[int, int, int]]) -> Iterator[Group]:
        place = p_place = q_place = 0
        for (rows, columns, rank), group in groupby(sizes):
            count = len(list(group))
            whole, p, q = count * rows * columns, count * rows * rank, count * columns * rank
            yield Group(
                matrices=self.gradient[place : place + whole].view(count, rows, columns),
                errors=self.error[place : place + whole].view(count, rows, columns),
                p=self.first[p_place : p_place + p].view(count, rows, rank),
                q=self.second[q_place : q_place + q].view(count, columns, rank),
                fresh_q=self.fresh[q_place : q_place + q].view(count, columns, rank),
            )
            place, p_place, q_place = place + whole, p_place + p, q_place + q

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            self.gradient[: self.matrix_part] += self.error
            for group in self.groups:
                torch.bmm(group.matrices, group.q, out=group.p)
            self.uncompressed.copy_(self.rest)
        self.wait_for_all()
        sent = self.allreduce(self.first)
        with self.watch("encode"):
            zero_columns = [orthogonalise(group.p) for group in self.groups]
            for group in self.groups:
                torch.bmm(group.matrices.transpose(1, 2), group.p, out=group.q)
        sent += self.allreduce(self.second)
        with self.watch("decode"):
            self.second /= self.world.size
            for group, columns in zip(self.groups, zero_columns, strict=True):
                transposed = group.q.transpose(1, 2)
                torch.baddbmm(group.matrices, group.p, transposed, alpha=-1, out=group.errors)
                torch.bmm(group.p, transposed, out=group.matrices)
                torch.where(columns, group.fresh_q, group.q, out=group.q)  # unconditionally: a check would wait for the GPU
            torch.div(self.uncompressed, self.world.size, out=self.rest)
        return sent

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error, "q": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error.copy_(state["error"])
        self.second.copy_(state["q"])


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
        others = matrices[..., place + 1 :]
        others -= column * (column * others).sum(dim=-2, keepdim=True)
    return norms.isinf()
