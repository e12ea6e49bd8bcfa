"""PowerSGD (Vogels et al., 2019): each gradient matrix as a product of two thin ones, a step of power iteration a step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.core import Message
from pufferfish_bench.errors import InputError
from pufferfish_bench.reducers.flat import Flat

TINY = 1e-8  # keeps a column of zeros from dividing by zero


@dataclass(frozen=True)
class Alike:
    """Gradient matrices of one shape that lie side by side in the flat buffer, and the thin matrices of their products."""

    matrices: Tensor  # (count, rows, columns), like the others a view
    errors: Tensor  # (count, rows, columns): what was not sent
    p: Tensor  # (count, rows, rank)
    q: Tensor  # (count, columns, rank)


class PowerSGD(Flat):
    """Sends P = MQ and Q = M'P of each matrix M, and what is no matrix as it is: two messages a step.

    What is lost today is added to the gradient of tomorrow (error feedback); Q is where tomorrow starts from (warm start).
    """

    takes_scaled = False  # what it remembers would be of another scale, or infinite for ever

    def __init__(self, *, rank: int, seed: int, **how: Any):
        super().__init__(**how)
        if rank < 1:
            raise InputError(f"reducer.rank={rank} must be at least 1")
        self.rank = rank
        self.seed = seed

    def ordered(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Matrices first, those of one shape together; then the rest."""
        return sorted(parameters, key=lambda parameter: (parameter.ndim < 2, shape_of(parameter)))

    def attach(self, model: nn.Module) -> nn.Module:
        module = super().attach(model)
        shapes = [shape_of(parameter) for parameter in self.parameters if parameter.ndim > 1]
        self.matrix_part = sum(rows * columns for rows, columns in shapes)
        self.rest = self.gradient[self.matrix_part :]
        thin = [(rows, columns, min(rows, columns, self.rank)) for rows, columns in shapes]
        p_size = sum(rows * rank for rows, _, rank in thin)
        # the first message: all P, and behind them what is no matrix
        self.first = self.gradient.new_zeros(p_size + len(self.rest))
        self.second = self.gradient.new_zeros(sum(columns * rank for _, columns, rank in thin))
        self.error = torch.zeros_like(self.gradient[: self.matrix_part])
        self.groups = list(self.grouped(thin))
        self.sent_as_is = self.first[p_size:]
        start = torch.Generator().manual_seed(self.seed)  # the same on all ranks
        self.second.copy_(torch.randn(self.second.shape, generator=start))
        return module

    def grouped(self, thin: list[tuple[int, int, int]]) -> Iterator[Alike]:
        place = p_place = q_place = 0
        for (rows, columns, rank), group in groupby(thin):
            count = len(list(group))
            whole, p, q = count * rows * columns, count * rows * rank, count * columns * rank
            yield Alike(
                matrices=self.gradient[place : place + whole].view(count, rows, columns),
                errors=self.error[place : place + whole].view(count, rows, columns),
                p=self.first[p_place : p_place + p].view(count, rows, rank),
                q=self.second[q_place : q_place + q].view(count, columns, rank),
            )
            place, p_place, q_place = place + whole, p_place + p, q_place + q

    def reduce(self) -> list[Message]:
        with self.watch("encode"):
            self.gradient[: self.matrix_part] += self.error
            for group in self.groups:
                torch.bmm(group.matrices, group.q, out=group.p)
            self.sent_as_is.copy_(self.rest)
        self.meet()
        sent = self.allreduce(self.first)
        with self.watch("encode"):
            for group in self.groups:
                orthogonalise(group.p)
                torch.bmm(group.matrices.transpose(1, 2), group.p, out=group.q)
        sent += self.allreduce(self.second)
        with self.watch("decode"):
            self.second /= self.world.size
            for group in self.groups:
                transposed = group.q.transpose(1, 2)
                torch.baddbmm(group.matrices, group.p, transposed, alpha=-1, out=group.errors)
                torch.bmm(group.p, transposed, out=group.matrices)
            torch.div(self.sent_as_is, self.world.size, out=self.rest)
        return sent

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error, "q": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error.copy_(state["error"])
        self.second.copy_(state["q"])


def shape_of(parameter: nn.Parameter) -> tuple[int, int]:
    """(rows, columns) of a gradient as a matrix: the first dimension against all others."""
    return (len(parameter), parameter[0].numel()) if parameter.ndim else (1, 1)


def orthogonalise(matrices: Tensor) -> None:
    """Make the columns of each matrix orthonormal, in place: Gram-Schmidt, all matrices at once."""
    for place in range(matrices.shape[-1]):
        column = matrices[..., place : place + 1]
        column /= column.norm(dim=-2, keepdim=True) + TINY
        others = matrices[..., place + 1 :]
        others -= column * (column * others).sum(dim=-2, keepdim=True)
