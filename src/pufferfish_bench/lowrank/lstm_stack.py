"""torch's nn.LSTM with low-rank gates: any number of layers, one or two directions. Also the kinds of both LSTM layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.lowrank.kind import Kind, argument, copy_bias
from pufferfish_bench.lowrank.lstm import GATES, LSTM, LowRankLSTM, State, gate_matrices

SIDES = ("ih", "hh")


class LowRankLSTMStack(nn.Module):
    """Called as nn.LSTM. Every layer and direction is a LowRankLSTM, in the order layer 0, layer 0 backwards, layer 1, ..."""

    mode, proj_size = "LSTM", 0

    def __init__(
        self, input_size: int, hidden_size: int, rank: int, *, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, **like: Any,
    ):  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self.directions = 1 + bidirectional
        inputs = [input_size, *[hidden_size * self.directions] * (num_layers - 1)]
        self.cells = nn.ModuleList(
            LowRankLSTM(size, hidden_size, rank, bias=bias, **like) for size in inputs for _ in range(self.directions)
        )

    def forward(self, x: Tensor | PackedSequence, state: State | None = None) -> tuple[Tensor, State]:
        """As nn.LSTM.forward, without packed sequences."""
        if isinstance(x, PackedSequence):
            raise InputError(
                "a low-rank nn.LSTM does not take a PackedSequence: pass a padded tensor, or keep this nn.LSTM dense "
                "(add its name to keep)"
            )
        batched = x.dim() == 3
        if not batched:
            x, state = x[:, None], None if state is None else (state[0][:, None], state[1][:, None])
        elif self.batch_first:
            x = x.transpose(0, 1)
        outputs, (h, c) = self.layers(x, self.start(x) if state is None else state)
        if not batched:
            return outputs[:, 0], (h[:, 0], c[:, 0])
        return outputs.transpose(0, 1) if self.batch_first else outputs, (h, c)

    def start(self, x: Tensor) -> State:
        zeros = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
        return zeros, zeros

    def layers(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        ends = []
        for layer in range(self.num_layers):
            if layer:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(self.directions):
                number = layer * self.directions + direction
                start = state[0][number], state[1][number]
                output, end = self.cells[number](x.flip(0) if direction else x, start)
                outputs.append(output.flip(0) if direction else output)
                ends.append(end)
            x = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        h, c = (torch.stack(part) for part in zip(*ends, strict=True))
        return x, (h, c)

    def flatten_parameters(self) -> None:
        """Does nothing: callers of nn.LSTM may call it."""


class StackKind(Kind):
    """nn.LSTM itself; its two biases of a gate become one, their sum."""

    types: tuple[type[nn.Module], ...] = (nn.LSTM,)
    factored: type[nn.Module] = LowRankLSTMStack
    carries_momentum = False

    def matches(self, layer: nn.Module) -> bool:
        return isinstance(layer, nn.LSTM) and not isinstance(layer, LSTM)

    def unfit(self, layer: nn.LSTM) -> str | None:
        return None if layer.proj_size == 0 else f"nn.LSTM with proj_size={layer.proj_size} has no low-rank form here"

    def shape(self, layer: nn.LSTM) -> tuple[int, int]:
        return layer.hidden_size, min(layer.input_size, layer.hidden_size)

    def matrices(self, layer: nn.LSTM) -> dict[str, Tensor]:
        return {
            f"{side}{ending}.{gate}": matrix
            for ending in endings(layer)
            for side in SIDES
            for gate, matrix in enumerate(getattr(layer, f"weight_{side}{ending}").detach().chunk(GATES))
        }

    def factors(self, factored: LowRankLSTMStack) -> dict[str, tuple[Tensor, Tensor]]:
        found: dict[str, tuple[Tensor, Tensor]] = {}
        for ending, cell in zip(endings(factored), factored.cells, strict=True):
            parts = gate_matrices(cell)
            found |= {f"{side}{ending}.{gate}": (parts[f"u_{side}", gate], parts[f"v_{side}", gate])
                      for side in SIDES for gate in range(GATES)}  # fmt: skip
        return found

    def new(self, layer: nn.LSTM, rank: int, like: dict[str, Any]) -> LowRankLSTMStack:
        return LowRankLSTMStack(rank=rank, **options(layer), **like)

    def empty_dense(self, factored: LowRankLSTMStack, like: dict[str, Any]) -> nn.LSTM:
        return nn.LSTM(**options(factored), **like)

    def copy_rest(self, layer: nn.LSTM, factored: LowRankLSTMStack) -> None:
        for ending, cell in zip(endings(layer), factored.cells, strict=True):
            if layer.bias:
                copy_bias(getattr(layer, f"bias_ih{ending}") + getattr(layer, f"bias_hh{ending}"), cell.get_parameter("bias"))

    def restore_rest(self, factored: LowRankLSTMStack, layer: nn.LSTM) -> None:
        for ending, cell in zip(endings(layer), factored.cells, strict=True):
            if layer.bias:
                copy_bias(cell.get_parameter("bias"), getattr(layer, f"bias_ih{ending}"))
                nn.init.zeros_(getattr(layer, f"bias_hh{ending}"))

    def origins(self, layer: nn.LSTM) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, ending in enumerate(endings(layer)):
            found |= {f"cells.{number}.{factor}_{side}": f"weight_{side}{ending}" for side in SIDES for factor in "uv"}
            found |= {f"cells.{number}.bias": f"bias_ih{ending}"} if layer.bias else {}
        return found

    def vectors(self, layer: nn.LSTM, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> dict[str, int]:
        x = argument(0, "input", args, kwargs)
        x = x.data if isinstance(x, PackedSequence) else x
        return dict.fromkeys(self.matrices(layer), x.numel() // layer.input_size)


class LayerKind(StackKind):
    """This package's LSTM: one layer with one bias."""

    types = (LSTM,)
    factored = LowRankLSTM

    def matches(self, layer: nn.Module) -> bool:
        return isinstance(layer, LSTM)

    def shape(self, layer: nn.LSTM) -> tuple[int, int]:
        return layer.hidden_size, layer.input_size

    def factors(self, factored: Any) -> dict[str, tuple[Tensor, Tensor]]:
        parts = gate_matrices(factored)
        return {f"{side}_l0.{gate}": (parts[f"u_{side}", gate], parts[f"v_{side}", gate])
                for side in SIDES for gate in range(GATES)}  # fmt: skip

    def new(self, layer: nn.LSTM, rank: int, like: dict[str, Any]) -> Any:
        return LowRankLSTM(layer.input_size, layer.hidden_size, rank, **like)

    def empty_dense(self, factored: Any, like: dict[str, Any]) -> LSTM:
        return LSTM(factored.u_ih.shape[2], factored.hidden, **like)

    def copy_rest(self, layer: nn.LSTM, factored: Any) -> None:
        copy_bias(layer.get_parameter("bias_ih_l0"), factored.bias)

    def restore_rest(self, factored: Any, layer: nn.LSTM) -> None:
        copy_bias(factored.bias, layer.get_parameter("bias_ih_l0"))
        layer.get_buffer("bias_hh_l0").zero_()

    def origins(self, layer: nn.LSTM) -> dict[str, str]:
        return {name.removeprefix("cells.0."): origin for name, origin in super().origins(layer).items()}


def endings(layer: Any) -> list[str]:
    """The endings of torch's parameter names, in the order of the cells."""
    return [f"_l{number}{way}" for number in range(layer.num_layers) for way in ("", "_reverse")[: 1 + layer.bidirectional]]


def options(layer: Any) -> dict[str, Any]:
    """The constructor's arguments of an nn.LSTM, dense or low-rank."""
    names = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
    return {name: getattr(layer, name) for name in names}
