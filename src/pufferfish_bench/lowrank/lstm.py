"""LSTM layers: torch's own with one bias, and one in which every gate matrix is the product of two thinner ones.

The low-rank layer is fast because it batches: the inputs of all time steps pass both factors before the loop, the four `u` of a
step are one product, and the gradients of the weights are one product over all steps. Large products go to oneDNN (products.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pufferfish_bench.lowrank.products import linear, linear_onednn, linears, packed, uses_onednn

GATES = 4  # input, forget, cell, output: torch's order
NON_LINEARITIES = (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid)
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

    # as in nn.LSTM
    mode, num_layers, batch_first, dropout, bidirectional, proj_size = "LSTM", 1, False, 0.0, False, 0
    stacked_parameters = ("u_ih", "v_ih", "u_hh", "v_hh", "bias")  # one tensor for each gate in each of them

    bias: nn.Parameter | None

    def __init__(self, inputs: int, hidden: int, rank: int, *, bias: bool = True, **like: Any):
        super().__init__()
        self.hidden = self.hidden_size = hidden
        self.input_size = inputs
        self.u_ih = nn.Parameter(torch.empty(GATES, rank, inputs, **like))
        self.v_ih = nn.Parameter(torch.empty(GATES, hidden, rank, **like))
        self.u_hh = nn.Parameter(torch.empty(GATES, rank, hidden, **like))
        self.v_hh = nn.Parameter(torch.empty(GATES, hidden, rank, **like))
        self.bias = nn.Parameter(torch.zeros(GATES, hidden, **like)) if bias else None
        for matrix in gate_matrices(self).values():
            nn.init.xavier_uniform_(matrix)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """As LSTM.forward."""
        return without_autocast(self.looped, x, state, self.u_ih.dtype)

    def looped(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        bias = self.u_ih.new_zeros(GATES, self.hidden) if self.bias is None else self.bias
        outputs, h, c = Recurrence.apply(x, self.u_ih, self.v_ih, bias, self.u_hh, self.v_hh, *state)
        return outputs, (h, c)


class Recurrence(torch.autograd.Function):
    """The whole layer: the inputs of all steps through both factors, the loop over time, and the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, u_ih: Tensor, v_ih: Tensor, bias: Tensor, u_hh: Tensor, v_hh: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        time, batch, _ = x.shape
        _, hidden, rank = v_hh.shape
        inner = x.new_empty(GATES, time, batch, 2 * rank)  # between the factors: of the hidden state, then of the input
        projected = by_gate(linear(x.flatten(0, 1), u_ih.flatten(0, 1)))
        inner[..., rank:] = projected.unflatten(1, (time, batch))
        of_inputs = [y.unflatten(0, (time, batch)) for y in linears(projected, v_ih, bias)]
        hs, cs = x.new_empty(2, time + 1, batch, hidden)
        hs[0], cs[0] = h, c
        opened = x.new_empty(time, GATES, batch, hidden)  # the gates after their non-linearities
        squashed = x.new_empty(time, batch, hidden)  # tanh(c)
        gates = (FusedGates if uses_onednn(hs[0], batch * hidden * rank) else BatchedGates)(u_hh, v_hh, of_inputs)
        steps = zip(inner[..., :rank].unbind(1), opened, squashed, hs, hs[1:], cs, cs[1:], strict=False)
        for t, (between, opening, squash, h, next_h, c, next_c) in enumerate(steps):
            i, f, g, o = gates.compute(t, h, between, opening)
            torch.mul(f, c, out=next_c).addcmul_(i, g)
            torch.mul(o, torch.tanh(next_c, out=squash), out=next_h)
        ctx.save_for_backward(x, u_ih, v_ih, u_hh, v_hh, inner, hs, cs, opened, squashed)
        return hs[1:], hs[-1].clone(), cs[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        x, u_ih, v_ih, u_hh, v_hh, inner, hs, cs, opened, squashed = ctx.saved_tensors
        rank = v_hh.shape[2]
        d_gates, through = gate_derivatives(opened, cs[:-1], squashed)
        d_inner = x.new_empty(*x.shape[:2], GATES * rank)
        d_h, d_c = d_h + d_outputs[-1], d_c.clone()
        u, v = u_hh.flatten(0, 1).t(), v_hh.transpose(1, 2)
        of_c, of_h, forget = d_gates[:3].unbind(1), d_gates[3], opened[:, 1]
        earlier = (None, *d_outputs[:-1])  # the gradient that the outputs add to d_h of the step before
        steps = [*zip(d_gates.unbind(1), of_c, of_h, d_inner, through, forget, earlier, strict=True)]
        for d_gate, by_c, by_h, d_between, into_c, f, before in reversed(steps):
            d_c.addcmul_(d_h, into_c)
            by_c *= d_c
            by_h *= d_h
            d_c *= f
            torch.cat(linears(d_gate, v), 1, out=d_between)
            d_h = linear(d_between, u, before)
        d_gates, d_inner = d_gates.flatten(1, 2), d_inner.flatten(0, 1)
        d_u_hh = linear(d_inner.t(), hs[:-1].flatten(0, 1).t())
        d_v = linears(d_gates.transpose(1, 2), inner.flatten(1, 2).transpose(1, 2))
        d_v_hh, d_v_ih = (torch.stack([both[:, part] for both in d_v]) for part in (slice(rank), slice(rank, None)))
        d_projected = torch.cat(linears(d_gates, v_ih.transpose(1, 2)), 1)
        d_u_ih = linear(d_projected.t(), x.flatten(0, 1).t())
        d_x = linear(d_projected, u_ih.flatten(0, 1).t()).view_as(x) if ctx.needs_input_grad[0] else None
        return d_x, d_u_ih.view_as(u_ih), d_v_ih, d_gates.sum(1), d_u_hh.view_as(u_hh), d_v_hh, d_h, d_c


class BatchedGates:
    """The four gates of a step as one batched product. `of_inputs` has what the inputs add to each gate at all steps."""

    def __init__(self, u: Tensor, v: Tensor, of_inputs: list[Tensor]):
        self.u, self.v = u.flatten(0, 1), v.transpose(1, 2)
        self.of_inputs = torch.stack(of_inputs, 1)

    def compute(self, t: int, h: Tensor, inner: Tensor, gates: Tensor) -> Tensor:
        """Write u @ h into `inner` (gates, batch, rank), and the gates after their non-linearities into `gates`."""
        inner.copy_(by_gate(linear(h, self.u)))
        torch.baddbmm(self.of_inputs[t], inner, self.v, out=gates)
        gates[:2].sigmoid_()
        gates[2].tanh_()
        gates[3].sigmoid_()
        return gates


class FusedGates:
    """Each gate of a step as one call of oneDNN, for large layers on a CPU. The weights are packed once for all steps."""

    def __init__(self, u: Tensor, v: Tensor, of_inputs: list[Tensor]):
        batch = of_inputs[0].shape[1]
        self.u, self.v = packed(u.flatten(0, 1), batch), [packed(matrix, batch) for matrix in v]
        self.of_inputs = [*zip(*of_inputs, strict=True)]

    def compute(self, t: int, h: Tensor, inner: Tensor, gates: Tensor) -> Tensor:
        """As BatchedGates.compute."""
        parts = by_gate(linear_onednn(h, self.u)).contiguous()
        inner.copy_(parts)
        terms = zip(parts, self.v, self.of_inputs[t], gates, NON_LINEARITIES, strict=True)
        for part, v, of_input, gate, non_linearity in terms:
            non_linearity(linear_onednn(part, v, of_input), out=gate)
        return gates


def gate_derivatives(gates: Tensor, c: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of each gate (gates, time, batch, hidden), to be multiplied by d_c (output gate: d_h), and of d_c by d_h."""
    i, f, g, o = gates.unbind(1)
    derivatives = gates.new_empty(GATES, *c.shape)
    of_sigmoid, of_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
    of_sigmoid(g, i, grad_input=derivatives[0])
    of_sigmoid(c, f, grad_input=derivatives[1])
    of_tanh(i, g, grad_input=derivatives[2])
    of_sigmoid(squashed, o, grad_input=derivatives[3])
    return derivatives, of_tanh(o, squashed)


def without_autocast(
    layer: Callable[[Tensor, State], tuple[Tensor, State]], x: Tensor, state: State, dtype: torch.dtype
) -> tuple[Tensor, State]:
    """Call a layer in its own number format, outside autocast."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return layer(x, state)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(dtype), (state[0].to(dtype), state[1].to(dtype)))


def by_gate(x: Tensor) -> Tensor:
    """(rows, gates * features) as (gates, rows, features)."""
    return x.view(len(x), GATES, -1).transpose(0, 1)


def gate_matrices(layer: nn.Module) -> dict[tuple[str, int], Tensor]:
    """Views of the matrices of an LSTM layer, by name (ih, hh; low-rank: u_ih, v_ih, u_hh, v_hh) and gate; empty for others."""
    if isinstance(layer, LSTM):
        stacked = {"ih": layer.weight_ih_l0.detach().chunk(GATES), "hh": layer.weight_hh_l0.detach().chunk(GATES)}
    elif isinstance(layer, LowRankLSTM):
        stacked = {name: factor.detach().unbind() for name, factor in layer.named_parameters() if name != "bias"}
    else:
        stacked = {}
    return {(name, gate): matrix for name, matrices in stacked.items() for gate, matrix in enumerate(matrices)}
