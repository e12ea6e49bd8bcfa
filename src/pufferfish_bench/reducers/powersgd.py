"""PowerSGD (Vogels et al., 2019): each gradient matrix as a product of two thin ones, a step of power iteration a step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from pufferfish_bench.core import Message
from pufferfish_bench.errors import InputError
from pufferfish_bench.limits import Count
from pufferfish_bench.reducers.flat import Flat

# A column of P of which less than this is left once the others are taken out of it is rounding noise: a single-precision product
# is exact to about 1e-6. A direction that is really so weak is not lost: error feedback adds it up until it is not.
DEAD = 1e-4


@dataclass(frozen=True)
class Alike:
    """Gradient matrices of one shape that lie side by side in the flat buffer, and the thin matrices of their products."""

    matrices: Tensor  # (count, rows, columns), like the others a view
    errors: Tensor  # (count, rows, columns): what was not sent
    p: Tensor  # (count, rows, rank)
    q: Tensor  # (count, columns, rank)
    fresh_q: Tensor  # (count, columns, rank): random numbers for columns that have died


class PowerSGD(Flat):
    """Sends P = MQ and Q = M'P of each matrix M, and what is no matrix as it is: two messages a step.

    What is lost today is added to the gradient of tomorrow (error feedback); Q is where tomorrow starts from (warm start).
    A column of Q that found nothing (the gradient is zero, or of a lower rank) would stay zero for ever: it is drawn again.

    A parameter is one matrix, its first dimension against all others; so is the weight of a Conv1d. A module whose parameters
    are stacks of matrices names them in `stacked_parameters`: each matrix of a stack is compressed by itself.
    """

    takes_scaled = False  # what it remembers would be of another scale, or infinite for ever

    def __init__(self, *, rank: Count, seed: int, **how: Any):
        super().__init__(**how)
        if rank < 1:
            raise InputError(f"reducer.rank={rank} must be at least 1")
        self.rank = rank
        self.seed = seed

    def ordered(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Matrices first, those of one shape together; then the rest."""
        return sorted(parameters, key=lambda parameter: (not self.matrices_of(parameter), self.matrices_of(parameter)[:1]))

    def matrices_of(self, parameter: nn.Parameter) -> list[tuple[int, int]]:
        """(rows, columns) of each matrix that a gradient consists of; none if it is sent as it is."""
        count, *shape = parameter.shape if id(parameter) in self.stacked else (1, *parameter.shape)
        return [(shape[0], math.prod(shape[1:]))] * count if len(shape) > 1 else []

    def attach(self, model: nn.Module) -> nn.Module:
        stacks = ((module, name) for module in model.modules() for name in getattr(module, "stacked_parameters", ()))
        self.stacked = {id(getattr(module, name)) for module, name in stacks}
        module = super().attach(model)
        shapes = [shape for parameter in self.parameters for shape in self.matrices_of(parameter)]
        self.matrix_part = sum(rows * columns for rows, columns in shapes)
        self.rest = self.gradient[self.matrix_part :]
        thin = [(rows, columns, min(rows, columns, self.rank)) for rows, columns in shapes]
        p_size = sum(rows * rank for rows, _, rank in thin)
        # the first message: all P, and behind them what is no matrix
        self.first = self.gradient.new_zeros(p_size + len(self.rest))
        start = torch.Generator().manual_seed(self.seed)  # the same on all ranks, and after a resume
        self.fresh = torch.randn(sum(columns * rank for _, columns, rank in thin), generator=start).to(self.gradient)
        self.second = self.fresh.clone()
        self.error = torch.zeros_like(self.gradient[: self.matrix_part])
        self.groups = list(self.grouped(thin))
        self.sent_as_is = self.first[p_size:]
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
                fresh_q=self.fresh[q_place : q_place + q].view(count, columns, rank),
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
            dead = [orthogonalise(group.p) for group in self.groups]
            for group in self.groups:
                torch.bmm(group.matrices.transpose(1, 2), group.p, out=group.q)
        sent += self.allreduce(self.second)
        with self.watch("decode"):
            self.second /= self.world.size
            for group, columns in zip(self.groups, dead, strict=True):
                transposed = group.q.transpose(1, 2)
                torch.baddbmm(group.matrices, group.p, transposed, alpha=-1, out=group.errors)
                torch.bmm(group.p, transposed, out=group.matrices)
                torch.where(columns, group.fresh_q, group.q, out=group.q)  # dead or not: to ask would wait for a GPU
            torch.div(self.sent_as_is, self.world.size, out=self.rest)
        return sent

    def state_dict(self) -> dict[str, Any]:
        return {"error": self.error, "q": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.error.copy_(state["error"])
        self.second.copy_(state["q"])


def orthogonalise(matrices: Tensor) -> Tensor:
    """Make the columns of each matrix orthonormal, in place: Gram-Schmidt, all matrices at once.

    A column that the ones before it make up is left zero. Returns which those are: (count, 1, columns).
    """
    least = DEAD * matrices.norm(dim=-2, keepdim=True)
    norms = torch.empty_like(least)
    for place in range(matrices.shape[-1]):
        column, norm = matrices[..., place : place + 1], norms[..., place : place + 1]
        torch.linalg.vector_norm(column, dim=-2, keepdim=True, out=norm)
        norm.masked_fill_(norm <= least[..., place : place + 1], torch.inf)
        column /= norm
        others = matrices[..., place + 1 :]
        others -= column * (column * others).sum(dim=-2, keepdim=True)
    return norms.isinf()
