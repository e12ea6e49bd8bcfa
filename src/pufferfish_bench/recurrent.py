"""LSTM layers: torch's own with one bias, and one whose every gate matrix is the product of two thinner ones.

The factored layer costs what its matrices cost: the inputs of all time steps go through both factors before the loop, the
four gates of a step are one batched product, and the gradients of the weights are one product over all steps.
"""

from typing import Any

import torch
from torch import Tensor, nn

GATES = 4  # input, forget, cell, output: torch's order
State = tuple[Tensor, Tensor]  # h and c, each (batch, hidden)


class LSTM(nn.LSTM):
    """One layer of torch's fused LSTM with one bias for each gate: the second is held at zero and not trained."""

    def __init__(self, inputs: int, hidden: int, **like: Any):
        super().__init__(inputs, hidden, **like)
        with torch.no_grad():
            self.bias_hh_l0.requires_grad_(False).zero_()
            self.bias_ih_l0.zero_()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Outputs (time, batch, hidden) for inputs (time, batch, features), and the state after the last step."""
        h, c = (part[None] for part in state)
        outputs, (h, c) = super().forward(x, (h, c))
        return outputs, (h[0], c[0])


class LowRankLSTM(nn.Module):
    """An LSTM layer in which every gate has two factors for the input and two for the hidden state: u comes first, then v."""

    def __init__(self, inputs: int, hidden: int, rank: int, **like: Any):
        super().__init__()
        self.hidden = hidden
        self.u_ih = nn.Parameter(torch.empty(GATES, rank, inputs, **like))
        self.v_ih = nn.Parameter(torch.empty(GATES, hidden, rank, **like))
        self.u_hh = nn.Parameter(torch.empty(GATES, rank, hidden, **like))
        self.v_hh = nn.Parameter(torch.empty(GATES, hidden, rank, **like))
        self.bias = nn.Parameter(torch.zeros(GATES, hidden, **like))
        for matrix in gate_matrices(self).values():
            nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """As LSTM.forward."""
        time, batch, _ = x.shape
        projected = x.flatten(0, 1) @ self.u_ih.flatten(0, 1).t()  # (time * batch, gates * rank)
        projected = projected.view(time * batch, GATES, -1).transpose(0, 1)
        gates = torch.baddbmm(self.bias[:, None], projected, self.v_ih.transpose(1, 2))
        gates = gates.view(GATES, time, batch, self.hidden).transpose(0, 1)
        outputs, h, c = Recurrence.apply(gates, self.u_hh, self.v_hh, *state)
        return outputs, (h, c)


class Recurrence(torch.autograd.Function):
    """The loop over time, given what the inputs contribute to the gates."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, u: Tensor, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time, _, batch, hidden = gates.shape
        down, up = u.flatten(0, 1).t(), v.transpose(1, 2)
        hs, cs = gates.new_empty(2, time + 1, batch, hidden)
        hs[0], cs[0] = h, c
        opened = torch.empty_like(gates, memory_format=torch.contiguous_format)  # the gates after their non-linearities
        squashed = gates.new_empty(time, batch, hidden)  # tanh(c)
        inner = gates.new_empty(time, batch, down.shape[1])  # between the factors
        for t in range(time):
            torch.mm(hs[t], down, out=inner[t])
            torch.baddbmm(gates[t], inner[t].view(batch, GATES, -1).transpose(0, 1), up, out=opened[t])
            i, f, g, o = opened[t]
            opened[t, :2].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, cs[t], out=cs[t + 1]).addcmul_(i, g)
            torch.mul(o, torch.tanh(cs[t + 1], out=squashed[t]), out=hs[t + 1])
        ctx.save_for_backward(u, v, hs, cs, opened, squashed, inner)
        return hs[1:], hs[-1].clone(), cs[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_h: Tensor, d_c: Tensor) -> tuple[Tensor, ...]:
        u, v, hs, cs, opened, squashed, inner = ctx.saved_tensors
        time, _, batch, hidden = opened.shape
        d_gates, d_inner = torch.empty_like(opened), torch.empty_like(inner)
        for t in reversed(range(time)):
            i, f, g, o = opened[t]
            d_h = d_h + d_outputs[t]
            d_c = d_c + d_h * o * (1 - squashed[t].square())
            torch.mul(d_c * g, i * (1 - i), out=d_gates[t, 0])
            torch.mul(d_c * cs[t], f * (1 - f), out=d_gates[t, 1])
            torch.mul(d_c * i, 1 - g.square(), out=d_gates[t, 2])
            torch.mul(d_h * squashed[t], o * (1 - o), out=d_gates[t, 3])
            d_c = d_c * f
            d_inner[t].view(batch, GATES, -1).transpose(0, 1).copy_(torch.bmm(d_gates[t], v))
            d_h = d_inner[t] @ u.flatten(0, 1)
        d_u = d_inner.flatten(0, 1).t() @ hs[:-1].flatten(0, 1)
        flat = d_gates.transpose(0, 1).reshape(GATES, time * batch, hidden)
        d_v = torch.bmm(flat.transpose(1, 2), inner.view(time * batch, GATES, -1).transpose(0, 1))
        return d_gates, d_u.view_as(u), d_v, d_h, d_c


def gate_matrices(layer: nn.Module) -> dict[tuple[str, int], Tensor]:
    """The matrices of an LSTM layer by side (of a factored one: factor and side) and gate, as views; none of other modules."""
    if isinstance(layer, LSTM):
        stacked = {"ih": layer.weight_ih_l0.detach().chunk(GATES), "hh": layer.weight_hh_l0.detach().chunk(GATES)}
    elif isinstance(layer, LowRankLSTM):
        stacked = {name: factor.detach().unbind() for name, factor in layer.named_parameters() if name != "bias"}
    else:
        stacked = {}
    return {(name, gate): matrix for name, matrices in stacked.items() for gate, matrix in enumerate(matrices)}
