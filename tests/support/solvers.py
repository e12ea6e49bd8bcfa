"""Observe which of torch's decompositions a piece of code computes."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Solvers(TorchDispatchMode):
    """Notes every eigenvalue and singular value decomposition: its operator, and the shape of its matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_linalg_eigh", "_linalg_svd"):
            matrix = args[0]
            assert isinstance(matrix, Tensor)
            self.calls.append((name, tuple(matrix.shape)))
        return func(*args, **(kwargs or {}))
