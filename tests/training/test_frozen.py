"""The parameter count includes frozen parameters; the number of trained ones is shown only where it differs."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import lowrank
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.lowrank import counting
from pufferfish_bench.lowrank.lstm import LSTM
from pufferfish_bench.methods.lth import LTH
from pufferfish_bench.records.files import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.records.record import Record
from pufferfish_bench.report.compare import compare
from pufferfish_bench.report.describe import show_run
from pufferfish_bench.report.summary import closing
from pufferfish_bench.training.recorder import Recorder
from pufferfish_bench.training.terminal import Terminal
from tests.support.nets import TINY_LAYERS, TinyNet
from tests.support.training import METHODS, train

ALL = sum(parameter.numel() for parameter in TinyNet().parameters())
HEAD = sum(parameter.numel() for parameter in TinyNet().fc2.parameters())


class Freeze(Surgery):
    """Freezes all layers but the last."""

    def operate(self, run: Run) -> Operation:
        self.replay(run.model, {})
        return Operation({"layers": {}})

    def replay(self, model: nn.Module, details: dict[str, Any]) -> None:
        model.requires_grad_(False)
        model.fc2.requires_grad_(True)


class FineTune(Method):
    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        return [Phase("all", range(1)), Phase("head", range(1, epochs), surgery=Freeze())]


def test_a_run_that_freezes_layers_reports_all_parameters_and_the_trained_ones(tmp_path: Path):
    shown = Terminal(console=Console(file=io.StringIO(), width=200))
    manifest = {"settings": {"name": "fine-tuned", "method": {}}}
    train(tmp_path, FineTune(), observers=[shown, Recorder(directory=tmp_path, manifest=manifest)], epochs=3)
    rows, record = read_rows(tmp_path / EPOCHS), read_json(tmp_path / RUN)
    assert [row["parameters"] for row in rows[::2]] == [ALL] * 3
    assert [row["trainable_parameters"] for row in rows[::2]] == [ALL, HEAD, HEAD]
    assert (record["summary"]["parameters"], record["summary"]["trainable_parameters"]) == (ALL, HEAD)
    said = shown.console.file.getvalue()
    assert f"phase all: {ALL:,} parameters, " in said
    assert f"{ALL:,} parameters ({HEAD:,} trained), " in said
    assert f"{ALL:,} parameters ({HEAD:,} trained), " in closing(Record(tmp_path, record, ()))
    (tmp_path / EPOCHS).write_text("".join((tmp_path / EPOCHS).read_text().splitlines(keepends=True)[::2]))
    assert list(compare([Record.read(tmp_path)])[0].columns[1].cells) == [f"{ALL:,} ({HEAD:,} trained)"]
    show_run(tmp_path, shown.console)
    assert f"parameters {ALL:,} ({HEAD:,} trained), MACs" in shown.console.file.getvalue()


def test_the_number_of_trained_parameters_is_not_shown_when_all_are_trained(tmp_path: Path):
    run = train(tmp_path, METHODS["vanilla"](), epochs=1)
    summary = read_json(tmp_path / RUN)["summary"]
    assert summary["parameters"] == summary["trainable_parameters"] == run.parameters == ALL
    assert " trained" not in closing(Record(tmp_path, {"summary": summary}, ()))
    del summary["trainable_parameters"]  # as in older records
    assert " trained" not in closing(Record(tmp_path, {"summary": summary}, ()))


def test_lth_counts_the_same_weights_whether_or_not_some_are_frozen():
    net, partly = TinyNet(), TinyNet()
    partly.fc2.requires_grad_(False)
    method = LTH(prune_share=0.2, rewind_steps=0, levels=None, sparsity=None, layers=TINY_LAYERS)
    assert method.size_of_pufferfish(net) == method.size_of_pufferfish(partly) < counting.parameters(net)
    assert method.levels_for(net) == method.levels_for(partly)


def whole(layer: LSTM, x: Tensor) -> Tensor:
    state = torch.zeros(2, 5), torch.zeros(2, 5)
    return layer(x, state)[0]


@pytest.mark.parametrize(
    "moved",
    [
        copy.deepcopy,
        lambda layer: layer.double().float(),
        lambda layer: layer.to("meta").to_empty(device="cpu"),
        lambda layer: lowrank.merge_layer(lowrank.random_factors(layer, 2)),
    ],
)
def test_the_second_bias_of_an_lstm_stays_a_buffer_when_the_layer_is_copied_moved_or_merged(moved: Any):
    torch.manual_seed(0)
    layer, x = LSTM(3, 5), torch.randn(4, 2, 3)
    state, before = layer.state_dict(), whole(layer, x)
    other = moved(layer)
    other.load_state_dict(state)  # also loads a checkpoint in which it was a parameter
    assert list(state) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert [name for name, _ in other.named_buffers()] == ["bias_hh_l0"]
    assert counting.parameters(other) == counting.trainable_parameters(other) == 4 * 5 * (3 + 5 + 1)
    assert all(flat is getattr(other, name) for flat, name in zip(other._flat_weights, state, strict=True))
    torch.testing.assert_close(whole(other, x), before)
