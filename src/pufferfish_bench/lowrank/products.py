"""Matrix products that oneDNN computes where it is faster than BLAS. No gradients: for use inside an autograd.Function.

torch multiplies float32 matrices on a CPU with its BLAS (usually MKL), but its LSTM with oneDNN. On some processors oneDNN is
twice as fast (seen on AMD processors with AVX-512); on others they differ little. Each call of oneDNN costs
about ten microseconds more than one of BLAS, so it takes only the large products. Which library computes a product
depends on its operands and on torch's settings, never on timing or load, so that results are reproducible.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 2**23  # multiply-accumulates of a product from which oneDNN is faster than BLAS in spite of its dearer calls


def has_onednn() -> bool:
    """Whether this build of torch has the operators that this module uses."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


ONEDNN = has_onednn()


def uses_onednn(x: Tensor, macs: int) -> bool:
    """Whether oneDNN computes a product of `x` that takes this many multiply-accumulates.

    Not where torch's own use of oneDNN is switched off, as for counting operations, nor in a graph for torch.compile.
    """
    return (
        ONEDNN
        and macs >= SMALLEST * (1 if x.is_contiguous() else 4)  # oneDNN needs a contiguous copy
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and not torch.compiler.is_compiling()
    )


def linear(x: Tensor, weight: Tensor, plus: Tensor | None = None) -> Tensor:
    """x @ weight.t() + plus, for matrices."""
    if uses_onednn(x, x.numel() * len(weight)):
        return linear_onednn(x, dense(weight), plus)
    return F.linear(x, weight) if plus is None else torch.addmm(plus, x, weight.t())


def linears(xs: Tensor, weights: Tensor, biases: Tensor | None = None) -> list[Tensor]:
    """x @ weight.t() + bias of each triple: xs (n, rows, in), weights (n, out, in), biases (n, out)."""
    if uses_onednn(xs[0], xs[0].numel() * weights.shape[1]):
        rows = [None] * len(xs) if biases is None else biases
        return [linear_onednn(x, dense(weight), bias=bias) for x, weight, bias in zip(xs, weights, rows, strict=True)]
    weights = weights.transpose(1, 2)
    return list(torch.bmm(xs, weights) if biases is None else torch.baddbmm(biases[:, None], xs, weights))


def linear_onednn(x: Tensor, weight: Tensor, plus: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """x @ weight.t() + plus + bias in one call of oneDNN. The weight must be dense or packed."""
    y: Tensor
    if plus is None:
        y = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    else:
        y = torch.ops.mkldnn._linear_pointwise.binary(x, plus, weight, bias, "add")
    return y


def packed(weight: Tensor, rows: int) -> Tensor:
    """A weight in oneDNN's own order, for many calls of `linear_onednn` with this many rows."""
    y: Tensor = torch.ops.mkldnn._reorder_linear_weight(dense(weight), rows)
    return y


def dense(weight: Tensor) -> Tensor:
    """The weight by rows or by columns without gaps: with other strides oneDNN falls back to code a thousand times slower."""
    return weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()
