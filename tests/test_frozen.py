"""Parameters are all of them; how many are trained is said beside, where that is not the same."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from pufferfish_bench import counting, low_rank
from pufferfish_bench.core import Method, Operation, Phase, Run, Surgery
from pufferfish_bench.methods.lth import LTH
from pufferfish_bench.observers import Recorder, Terminal
from pufferfish_bench.records import EPOCHS, RUN, closing, read_json, read_rows
from pufferfish_bench.recurrent import LSTM
from pufferfish_bench.report.compare import compare
from pufferfish_bench.report.describe import show_run
from tests.conftest import TINY_LAYERS, TinyNet
from tests.test_trainer import METHODS, train

ALL = sum(parameter.numel() for parameter in TinyNet().parameters())
HEAD = sum(parameter.numel() for parameter in TinyNet().fc2.parameters())


class Freeze(Surgery):
    """Leaves the last layer to be trained."""

    def operate(self, run: Run) -> Operation:
        self.replay(run.model, {})
        return Operation({"layers": {}})

    def replay(self, model: nn.Module, done: dict[str, Any]) -> None:
        model.requires_grad_(False)
        model.fc2.requires_grad_(True)


class FineTune(Method):
    def plan(self, epochs: int, model: nn.Module) -> list[Phase]:
        return [Phase("all", range(1)), Phase("head", range(1, epochs), enter=Freeze())]


def test_a_run_that_freezes_layers_has_the_size_of_its_net(tmp_path: Path):
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
    assert f"{ALL:,} parameters ({HEAD:,} trained), " in closing(record["summary"], tmp_path)
    (tmp_path / EPOCHS).write_text("".join((tmp_path / EPOCHS).read_text().splitlines(keepends=True)[::2]))
    assert list(compare([tmp_path])[0].columns[1].cells) == [f"{ALL:,} ({HEAD:,} trained)"]
    show_run(tmp_path, shown.console)
    assert f"parameters {ALL:,} ({HEAD:,} trained), MACs" in shown.console.file.getvalue()


def test_where_all_are_trained_nothing_is_said_of_it(tmp_path: Path):
    run = train(tmp_path, METHODS["vanilla"](), epochs=1)
    summary = read_json(tmp_path / RUN)["summary"]
    assert summary["parameters"] == summary["trainable_parameters"] == run.parameters == ALL
    assert " trained" not in closing(summary, tmp_path)
    del summary["trainable_parameters"]  # as older records have it
    assert " trained" not in closing(summary, tmp_path)


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
        lambda layer: low_rank.dense(low_rank.thin(layer, 2)),
    ],
)
def test_the_second_bias_of_an_lstm_is_a_buffer_wherever_the_layer_goes(moved: Any):
    torch.manual_seed(0)
    layer, x = LSTM(3, 5), torch.randn(4, 2, 3)
    state, before = layer.state_dict(), whole(layer, x)
    other = moved(layer)
    other.load_state_dict(state)  # also of a checkpoint in which it was a parameter
    assert list(state) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert [name for name, _ in other.named_buffers()] == ["bias_hh_l0"]
    assert counting.parameters(other) == counting.trainable_parameters(other) == 4 * 5 * (3 + 5 + 1)
    assert all(flat is getattr(other, name) for flat, name in zip(other._flat_weights, state, strict=True))
    torch.testing.assert_close(whole(other, x), before)
