"""LSTM layers: torch's own with one bias, and one in which every gate matrix is the product of two thinner ones.

The low-rank layer is fast because it batches: the inputs of all time steps pass both factors before the loop, the four gates of
a step are one batched product, and the gradients of the weights are one product over all steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

GATES = 4  # input, forget, cell, output: torch's order
State = tuple[Tensor, Tensor]  # h and c, each (batch, hidden)


class LSTM(nn.LSTM):
    """One layer of torch's fused LSTM with one bias for each gate: the second is a buffer of zeros, not a parameter."""

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int, **like: Any):
        super().__init__(inputs, hidden, **like)
        zeros = torch.zeros_like(self.bias_hh_l0.detach())
        del self.bias_hh_l0
        self.register_buffer("bias_hh_l0", zeros)  # under the same name in a state_dict
        self._init_flat_weights()  # torch passes this list to its kernels: it must contain the buffer
        with torch.no_grad():
            self.bias_ih_l0.zero_()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        """Outputs (time, batch, hidden) for inputs (time, batch, features), and the state after the last step."""
        if x.is_cuda:
            return self.fused(x, state)
        return without_autocast(self.fused, x, state, self.bias_ih_l0.dtype)  # oneDNN cannot train an LSTM in bfloat16

    def fused(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = (part[None] for part in state)
        outputs, (h, c) = super().forward(x, (h, c))
        return outputs, (h[0], c[0])


class LowRankLSTM(nn.Module):
    """An LSTM layer in which every gate has two factors for the input and two for the hidden state: u comes first, then v."""

    stacked_parameters = ("u_ih", "v_ih", "u_hh", "v_hh", "bias")  # one tensor for each gate in each of them

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
        return without_autocast(self.looped, x, state, self.bias.dtype)

    def looped(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        time, batch, _ = x.shape
        projected = x.flatten(0, 1) @ self.u_ih.flatten(0, 1).t()  # (time * batch, gates * rank)
        projected = projected.view(time * batch, GATES, -1).transpose(0, 1)
        gates = torch.baddbmm(self.bias[:, None], projected, self.v_ih.transpose(1, 2))
        gates = gates.view(GATES, time, batch, self.hidden).transpose(0, 1)
        outputs, h, c = Recurrence.apply(gates, self.u_hh, self.v_hh, *state)
        return outputs, (h, c)


class Recurrence(torch.autograd.Function):
    """The loop over time. `gates` is the contribution of the inputs to the gates of all steps."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, u: Tensor, v: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time, _, batch, hidden = gates.shape
        down, up = u.transpose(1, 2), v.transpose(1, 2)
        hs, cs = gates.new_empty(2, time + 1, batch, hidden)
        hs[0], cs[0] = h, c
        opened = torch.empty_like(gates, memory_format=torch.contiguous_format)  # the gates after their non-linearities
        squashed = gates.new_empty(time, batch, hidden)  # tanh(c)
        inner = gates.new_empty(time, GATES, batch, u.shape[1])  # between the factors
        for t in range(time):
            torch.bmm(hs[t].expand(GATES, -1, -1), down, out=inner[t])
            torch.baddbmm(gates[t], inner[t], up, out=opened[t])
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
        time = len(opened)
        i, f, g, o = opened.unbind(1)
        # computed for all steps at once: the derivative of each gate, later multiplied by d_c (output gate: d_h)
        d_gates = torch.stack([g * i * (1 - i), cs[:-1] * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o)], 1)
        through = o * (1 - squashed * squashed)  # from d_h into d_c
        d_inner = torch.empty_like(inner)
        d_h, d_c = d_h.clone(), d_c.clone()
        v, u = by_columns(v), by_columns(u)
        for t in reversed(range(time)):
            d_h += d_outputs[t]
            d_c.addcmul_(d_h, through[t])
            d_gates[t, :3] *= d_c
            d_gates[t, 3] *= d_h
            d_c *= f[t]
            torch.bmm(d_gates[t], v, out=d_inner[t])
            torch.sum(torch.bmm(d_inner[t], u), 0, out=d_h)
        d_u = torch.bmm(by_gate(d_inner).transpose(1, 2), hs[:-1].flatten(0, 1).expand(GATES, -1, -1))
        d_v = torch.bmm(by_gate(d_gates).transpose(1, 2), by_gate(inner))
        return d_gates, d_u, d_v, d_h, d_c


def without_autocast(
    layer: Callable[[Tensor, State], tuple[Tensor, State]], x: Tensor, state: State, dtype: torch.dtype
) -> tuple[Tensor, State]:
    """Call a layer in its own number format, outside autocast."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return layer(x, state)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(dtype), (state[0].to(dtype), state[1].to(dtype)))


def by_gate(x: Tensor) -> Tensor:
    """(time, gates, batch, features) as (gates, time * batch, features)."""
    return x.transpose(0, 1).reshape(GATES, -1, x.shape[-1])


def by_columns(matrices: Tensor) -> Tensor:
    """The same matrices in column-major order: BLAS is faster with them as right factors of matrices with few rows."""
    return matrices.transpose(1, 2).contiguous().transpose(1, 2)


def gate_matrices(layer: nn.Module) -> dict[tuple[str, int], Tensor]:
    """Views of the matrices of an LSTM layer, by name (ih, hh; low-rank: u_ih, v_ih, u_hh, v_hh) and gate; empty for others."""
    if isinstance(layer, LSTM):
        stacked = {"ih": layer.weight_ih_l0.detach().chunk(GATES), "hh": layer.weight_hh_l0.detach().chunk(GATES)}
    elif isinstance(layer, LowRankLSTM):
        stacked = {name: factor.detach().unbind() for name, factor in layer.named_parameters() if name != "bias"}
    else:
        stacked = {}
    return {(name, gate): matrix for name, matrices in stacked.items() for gate, matrix in enumerate(matrices)}
