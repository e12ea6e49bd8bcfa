"""pufferfish-export: files that hold the run's model exactly, that can be rebuilt, and that are whole or absent."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pufferfish_bench import export, lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import export as command
from pufferfish_bench.cli import pages
from pufferfish_bench.cli.run import run as pufferfish_run
from pufferfish_bench.config.restore import restored_model
from pufferfish_bench.config.samples import recorded_input
from pufferfish_bench.export import container, graph, write
from pufferfish_bench.export.inputs import Images, inputs_of
from pufferfish_bench.records import reader
from tests.support.commands import SMALL, SMALL_TEXT
from tests.support.repository import REPOSITORY

ONE_WARMUP = ("epochs=2", "warmup_epochs=1")
IMAGES = ("model=resnet18", *SMALL, "dataset.train_images=32", "dataset.test_images=10")
RUNS = {
    "cnn": (*IMAGES, "method=pufferfish", "model.net.width=0.1", *ONE_WARMUP),
    "vanilla": (*IMAGES, "method=vanilla", "epochs=1", "warmup_epochs=0"),
    "lstm": ("model=lstm", *SMALL_TEXT["lstm"], "method=pufferfish", *ONE_WARMUP),
    "transformer": ("model=transformer", *SMALL_TEXT["transformer"], "model.net.inner=32", "method=pufferfish", *ONE_WARMUP),
}
FACTORED = ("cnn", "lstm", "transformer")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run for each of RUNS."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; the context restores it
        for name, words in RUNS.items():
            patch.setattr(sys, "argv", ["pufferfish-run", *words, f"run_dir={folder / name}"])
            pufferfish_run()
    return folder


def model_of(directory: Path) -> nn.Module:
    return restored_model(directory, reader.read_run(directory))


def exported(runs: Path, name: str, out: Path, *options: str) -> Path:
    command.main([f"run={runs / name}", str(out), *options])
    return out


def sample(name: str) -> tuple[Any, ...]:
    torch.manual_seed(3)
    if name == "lstm":
        states = [(torch.randn(5, 16), torch.randn(5, 16)) for _ in range(2)]
        return torch.randint(45, (35, 5)), states
    if name == "transformer":
        return torch.randint(4, 66, (3, 6)), torch.randint(4, 66, (3, 8))
    return (torch.randn(3, 3, 32, 32),)


def leaves(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    with torch.no_grad():
        return pytree.tree_leaves(model(*inputs))


def figure(text: str, words: str) -> float:
    found = re.search(re.escape(words) + r" ([\d.e+-]*\d)", text)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("name", RUNS)
def test_a_factored_file_holds_the_runs_model_exactly(
    runs: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    out, model = exported(runs, name, tmp_path / "out.safetensors"), model_of(runs / name)
    said = capsys.readouterr().out
    assert figure(said, "difference to the run's model") == 0
    assert ("factored and merged" in said) == (name in FACTORED)
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in said
    assert len(re.findall(r"batch (?:1|32) \(.*: (?:factored|dense) [\d.]+", said)) == 2
    assert re.search(r"on the CPU \(.+\), 1 thread\n", said)

    state, metadata = export.load(out)
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) and tensor.dtype == expected[key].dtype for key, tensor in state.items())
    record = reader.read_run(runs / name)
    ranks = {layer: found["rank"] for done in record["operations"] for layer, found in done["layers"].items()}
    assert metadata["ranks"] == ranks
    assert bool(ranks) == (name in FACTORED)
    assert metadata["form"] == "factored"
    assert metadata["model"] == record["settings"]["model"]["net"]
    assert metadata["run"]["name"] == record["settings"]["name"]
    assert metadata["run"]["commit"] == record["commit"]
    metric = record["summary"]["metric"]
    assert metadata["metric"] == {
        "name": metric,
        "value": record["summary"][metric],
        "higher_is_better": record["summary"]["higher_is_better"],
    }

    rebuilt, inputs = export.rebuild(out), sample(name)
    assert not any(module.training for module in rebuilt.modules())
    assert all(torch.equal(a, b) for a, b in zip(leaves(rebuilt, inputs), leaves(model, inputs), strict=True))


@pytest.mark.parametrize("name", FACTORED)
def test_a_merged_file_is_dense_and_computes_the_same(
    runs: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    out, model = exported(runs, name, tmp_path / "out.safetensors", "--merge"), model_of(runs / name)
    said, rebuilt, inputs = capsys.readouterr().out, export.rebuild(out), sample(name)
    assert not any(isinstance(layer, lowrank.FactoredLayer) for layer in rebuilt.modules())
    assert any(isinstance(layer, lowrank.FactoredLayer) for layer in model.modules())
    for a, b in zip(leaves(rebuilt, inputs), leaves(model, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    merged = lowrank.merge(model).state_dict()
    state, metadata = export.load(out)
    assert all(torch.equal(tensor, merged[key]) for key, tensor in state.items())
    assert state.keys() == merged.keys()
    assert metadata["form"] == "merged"
    assert metadata["ranks"]
    assert figure(said, "difference to the run's model") == figure(said, "between factored and merged") < 1e-4


def test_the_file_opens_in_a_process_that_has_only_safetensors_and_torch(runs: Path, tmp_path: Path):
    exported(runs, "lstm", tmp_path / "out.safetensors")
    torch.save(model_of(runs / "lstm").state_dict(), tmp_path / "state.pt")
    program = """
import json, sys
sys.modules["pufferfish_bench"] = None
import torch
from safetensors import safe_open
with safe_open("out.safetensors", framework="pt") as file:
    metadata = file.metadata()
    state = {name: file.get_tensor(name) for name in file.keys()}
aliases = json.loads(metadata["aliases"])
expected = torch.load("state.pt", weights_only=True)
assert state.keys().isdisjoint(aliases) and {*state, *aliases} == {*expected}
assert all(torch.equal(state[aliases.get(name, name)], tensor) for name, tensor in expected.items())
print(metadata["ranks"], aliases)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == """{"lstm.0": 4, "lstm.1": 4} {'decoder.weight': 'embedding.weight'}"""


def test_tied_weights_are_written_once_and_tied_again(runs: Path, tmp_path: Path):
    out = exported(runs, "lstm", tmp_path / "out.safetensors")
    state, _ = export.load(out)
    assert state["decoder.weight"] is state["embedding.weight"]
    rebuilt = export.rebuild(out)
    assert rebuilt.get_parameter("decoder.weight") is rebuilt.get_parameter("embedding.weight")


def test_batch_norm_statistics_are_in_the_file(runs: Path, tmp_path: Path):
    state, _ = export.load(exported(runs, "cnn", tmp_path / "out.safetensors"))
    means = [tensor for name, tensor in state.items() if name.endswith("running_mean")]
    assert means
    assert all(mean.abs().sum() > 0 for mean in means)


def test_views_strides_and_empty_tensors_survive(tmp_path: Path):
    whole = torch.randn(4, 6)
    state = {
        "whole": whole, "same": whole, "part": whole[1:3], "transposed": whole.t(), "rows": whole.view(6, 4),
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), "none": torch.empty(0), "nothing": torch.empty(0),
        "flags": torch.tensor([True, False]), "half": torch.randn(3).bfloat16(), "count": torch.tensor(7),
    }  # fmt: skip
    described = {key: {} for key in container.OBJECTS} | {"form": "factored"}
    container.save(tmp_path / "x.safetensors", state, described)
    found, metadata = export.load(tmp_path / "x.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in state.items())
    assert metadata["aliases"] == {"same": "whole"}
    assert load_file(tmp_path / "x.safetensors").keys() == state.keys() - {"same"}
    with pytest.raises(InputError, match="holds only tensors"):
        container.save(tmp_path / "y.safetensors", {"extra": {"a": 1}}, described)


@pytest.mark.parametrize("name", FACTORED)
def test_onnx_takes_other_batch_sizes_and_computes_the_same(
    runs: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    exported(runs, name, tmp_path / "out.safetensors", "--onnx")
    said = capsys.readouterr().out
    assert figure(said, "model in onnxruntime") < 1e-4
    assert "any batch size" in said
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"))
    inputs, model = sample(name), model_of(runs / name)
    names = {"lstm": ["words", "h_0", "c_0", "h_1", "c_1"], "transformer": ["source", "target"], "cnn": ["images"]}[name]
    assert [each.name for each in session.get_inputs()] == names
    results = session.run(None, dict(zip(names, (t.numpy() for t in pytree.tree_leaves(inputs)), strict=True)))
    for result, expected in zip(results, leaves(model, inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-5)
    written = onnx.load(tmp_path / "out.onnx")
    properties = {each.key: each.value for each in written.metadata_props}
    assert json.loads(properties["ranks"]) == export.load(tmp_path / "out.safetensors")[1]["ranks"]
    assert ("merged in this file" in said) == ("lstm.0, lstm.1" in said) == (name == "lstm")
    shapes = {tuple(each.dims) for each in written.graph.initializer}
    low_rank = [layer for layer in model.modules() if isinstance(layer, lowrank.LowRank)]
    factors = {tuple(layer.u.weight.shape) for layer in low_rank if layer.u.weight.ndim > 2}
    assert factors <= shapes
    assert bool(factors) == (name == "cnn")


class Recurrent(nn.Module):
    """The layers of torch that hold several matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.lstm = nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.attention(x, x, x, need_weights=False)[0])[0][:, -1])


def test_the_graph_of_low_rank_layers_of_torch_has_factored_attention_and_a_dense_lstm(tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = Recurrent().eval()
    lowrank.factorise(model, lowrank.choose(model, keep=["head"], first=None, rank_ratio=0.3).ranks)
    written = graph.write_graph(tmp_path / "x.onnx", model, Images((5, 16)), {})
    assert written.merged == ["lstm"]
    inputs = torch.randn(2, 5, 16)
    torch.testing.assert_close(graph.runtime(tmp_path / "x.onnx")(inputs)[0], model(inputs), rtol=1e-4, atol=1e-5)
    shapes = {tuple(sorted(each.dims)) for each in onnx.load(tmp_path / "x.onnx").graph.initializer}
    assert tuple(sorted(model.attention.q_proj.u.weight.shape)) == (4, 16)
    assert (4, 16) in shapes
    assert not {(16, 16), (16, 48)} & shapes


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_mode_of_a_file_follows_the_umask(tmp_path: Path, mask: int, mode: int):
    before = os.umask(mask)
    try:
        container.save(tmp_path / "x", {"w": torch.ones(2)}, {key: {} for key in container.OBJECTS} | {"form": "merged"})
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode


def test_the_input_of_an_own_data_set_is_found_in_the_folders_of_pufferfish_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    (tmp_path / "dataset").mkdir()
    own = "_target_: my_data.task\nclasses: 3\ninput: {kind: images, sample: [{_target_: torch.zeros, size: [1, 2, 8, 8]}]}\n"
    (tmp_path / "dataset" / "mine.yaml").write_text(own)
    settings = {"dataset": {"_target_": "my_data.task", "classes": 3}, "model": {"net": {}}}
    monkeypatch.delenv("PUFFERFISH_CONF", raising=False)
    assert recorded_input(settings) is None
    monkeypatch.setenv("PUFFERFISH_CONF", str(tmp_path))
    assert inputs_of(tmp_path, {"settings": settings}) == Images((2, 8, 8))


def test_a_model_of_torchvision_is_rebuilt_in_a_process_that_did_not_train_it(tmp_path: Path):
    net = {"_target_": "torchvision.models.resnet18", "num_classes": 10}
    program = f"""from pufferfish_bench.config.restore import build_net
print(type(build_net({net}, ["torchvision.models.resnet18"])).__name__)"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "ResNet\n", done.stderr


class OnlyPairs(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.shape[0] == 2 else super().forward(x) * 2


class DependsOnValues(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) > 0 else -super().forward(x)


def test_a_model_that_torch_cannot_export_with_a_free_batch_size_has_a_fixed_one(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    model = OnlyPairs(4, 3).eval()
    written = graph.write_graph(tmp_path / "x.onnx", model, Images((4,)), {})
    assert not written.free_batch
    run, pair = graph.runtime(tmp_path / "x.onnx"), torch.randn(2, 4)
    torch.testing.assert_close(run(pair)[0], model(pair))
    with pytest.raises(InputError, match="onnxruntime cannot run the exported graph"):
        run(torch.randn(3, 4))


def test_a_model_that_torch_cannot_export_at_all_is_refused_in_one_sentence(tmp_path: Path):
    pytest.importorskip("onnxscript")
    with pytest.raises(InputError, match=r"torch cannot export this model to ONNX \(.+\); leave --onnx out") as refusal:
        graph.write_graph(tmp_path / "x.onnx", DependsOnValues(4, 3).eval(), Images((4,)), {})
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


PRUNED = {
    "eb_train": ("epochs=2", "method.search_epochs=1", "method.prune_ratio=0.5"),  # removes channels
    "lth": ("epochs=1", "method.levels=1"),  # masks weights
}


@pytest.mark.parametrize("method", PRUNED)
def test_pruned_networks_are_rebuilt(
    invoke: Callable[..., Any], method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    done = invoke(*IMAGES, f"method={method}", "warmup_epochs=0", "run_dir=run", *PRUNED[method])
    assert done.returncode == 0, done.stderr
    command.main(["run=run", "out.safetensors"])
    assert figure(capsys.readouterr().out, "difference to the run's model") == 0
    model, rebuilt = model_of(tmp_path / "run"), export.rebuild("out.safetensors")
    for one, other in zip(rebuilt.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    masks = {name for name in model.state_dict() if name.endswith(".mask")}
    assert bool(masks) == (method == "lth")
    assert rebuilt.state_dict().keys() == model.state_dict().keys() - masks


def main(words: list[str]) -> None:
    """The command with its messages."""
    before, sys.argv = sys.argv, ["pufferfish-export", *words]
    try:
        command.run()
    finally:
        sys.argv = before


def test_wrong_arguments_are_refused_in_one_sentence(runs: Path, tmp_path: Path, refused: Callable[..., None]):
    run, out = f"run={runs / 'cnn'}", tmp_path / "out.safetensors"
    (tmp_path / "there.safetensors").write_text("mine")
    (tmp_path / "folder.safetensors").mkdir()
    for words, sentence in (
        ([out], "give one run=DIR, the directory of a finished run; got 0"),
        ([run, run, out], "got 2"),
        ([run], "give one file to write, as in out.safetensors; got 0"),
        ([run, out, tmp_path / "b.safetensors"], "got 2"),
        ([run, "--fast", out], "option --fast is not known; allowed: --merge, --onnx, --force"),
        ([run, out, "--allow"], "--allow needs the name"),
        ([run, out, "--input", "3,32,32"], "--input 3,32,32: give the shape of one input"),
        ([run, out, "--input=0x3"], "--input 0x3: give the shape of one input"),
        ([run, tmp_path / "out.pt"], "out.pt must end with .safetensors"),
        ([run, tmp_path / "no" / "out.safetensors"], "there is no folder"),
        ([run, tmp_path / "there.safetensors"], "there.safetensors exists; give --force to replace it"),
        ([run, "--force", tmp_path / "folder.safetensors"], "is a folder"),
        (["run=nowhere", out], "there is no run in nowhere"),
        ([run, out, "--input", "5x32x32"], "the model does not accept a batch of 1 (of 5x32x32)"),
    ):
        refused(main, words, sentence)
    assert (tmp_path / "there.safetensors").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.safetensors", "there.safetensors"]


def test_force_replaces_a_file(runs: Path, tmp_path: Path):
    (tmp_path / "out.safetensors").write_text("old")
    exported(runs, "vanilla", tmp_path / "out.safetensors", "--force")
    assert export.load(tmp_path / "out.safetensors")[1]["ranks"] == {}


def altered(runs: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a run whose record was changed."""
    shutil.copytree(runs / "cnn", folder)
    record = json.loads((folder / "run.json").read_text())
    change(record)
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_runs_that_cannot_be_exported_are_refused(runs: Path, tmp_path: Path, refused: Callable[..., None]):
    unfinished = altered(runs, tmp_path / "unfinished", lambda record: record.pop("finished"))
    bare = altered(runs, tmp_path / "bare", lambda record: None)
    shutil.rmtree(bare / "checkpoints")
    foreign = altered(runs, tmp_path / "foreign", lambda record: record["settings"]["model"]["net"].update(_target_="os.system"))
    own_data = altered(runs, tmp_path / "own_data", lambda record: record["settings"]["dataset"].update(_target_="mine.data"))
    other_rank = altered(
        runs, tmp_path / "other_rank", lambda record: record["operations"][0]["layers"]["layer4.1.conv2"].update(rank=3)
    )
    for run, sentence in (
        (unfinished, "is not finished; run its command again to resume it"),
        (bare, "has no checkpoint"),
        (foreign, "which is not a model.net of this package and would be executed; if you trust it, give --allow os.system"),
        (own_data, "the data set of the run (mine.data) is not part of this package; give the shape of one input"),
        (other_rank, "do not fit the model that its metadata describe"),
    ):
        refused(main, [f"run={run}", tmp_path / "out.safetensors"], sentence)
    main([f"run={own_data}", str(tmp_path / "own.safetensors"), "--input", "3x32x32"])
    assert not (tmp_path / "out.safetensors").exists()
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["own.safetensors"]


def test_a_users_own_model_needs_to_be_allowed(tmp_path: Path):
    """In processes of their own: the class is found from the current directory."""
    (tmp_path / "my_net.py").write_text(
        "from pufferfish_bench.models.resnet18 import ResNet18\n\n\nclass Net(ResNet18):\n    pass\n"
    )

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)

    done = python("-m", "pufferfish_bench", *RUNS["cnn"], "model.net._target_=my_net.Net", "run_dir=run")
    assert done.returncode == 0, done.stderr
    words = ("-m", "pufferfish_bench.cli.export", "run=run", "out.safetensors")
    done = python(*words)
    assert done.returncode == 2
    assert "give --allow my_net.Net" in done.stderr
    done = python(*words, "--allow", "my_net.Net")
    assert done.returncode == 0, done.stderr
    with pytest.raises(InputError, match=r"give --allow my_net\.Net"):
        export.rebuild(tmp_path / "out.safetensors")
    program = "from pufferfish_bench import export\nprint(type(export.rebuild('out.safetensors', allow=['my_net.Net'])))"
    assert python("-c", program).stdout == "<class 'my_net.Net'>\n"


def test_missing_onnx_packages_are_named_with_the_command_to_install_them(
    runs: Path, tmp_path: Path, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "ONNX", ("onnx", "no_such_runtime"))
    words = [f"run={runs / 'cnn'}", "--onnx", tmp_path / "out.safetensors"]
    refused(main, words, "--onnx needs no_such_runtime: pip install 'pufferfish-bench[onnx]'")


def test_a_file_that_computes_something_else_is_not_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., None]
):
    def damaging(path: Path, state: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        saved(path, state | {"linear.bias": state["linear.bias"] + 1}, metadata)

    saved = container.save
    monkeypatch.setattr(container, "save", damaging)
    refused(main, [f"run={runs / 'cnn'}", tmp_path / "out.safetensors"], "was not written: its outputs differ")
    assert not list(tmp_path.iterdir())


def test_a_nan_counts_as_a_difference():
    with pytest.raises(InputError, match="was not written"):
        write.check(Path("x"), float("nan"), 1.0)


def test_a_kill_between_writing_and_renaming_leaves_no_half_file(runs: Path, tmp_path: Path):
    """The process kills itself when the file is written and checked, just before it gets its name."""
    program = """
import os, signal, sys
from pathlib import Path
from pufferfish_bench.cli import export
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
export.main(sys.argv[1:])
"""
    words = [f"run={runs / 'cnn'}", str(tmp_path / "out.safetensors")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "out.safetensors").exists()
    command.main(words)
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]
    assert export.rebuild(tmp_path / "out.safetensors")


def test_files_of_others_are_refused_by_the_reader(runs: Path, tmp_path: Path):
    out = exported(runs, "cnn", tmp_path / "out.safetensors")
    with safetensors.safe_open(out, framework="pt") as file:
        texts = file.metadata()
    tensors = load_file(out)
    for changes, sentence in (
        ({container.MARK: "2"}, "has version 2, but this version of the package reads 1"),
        ({"ranks": "[]"}, "ranks in its metadata is not a JSON object"),
        ({"model": "{"}, "model in its metadata is not a JSON object"),
        ({"form": "thin"}, "its form must be factored or merged"),
        ({"aliases": '{"a": "b"}'}, "has no tensor b, which is also a"),
        ({"model": '{"_target_": "os.system", "command": "true"}'}, "give --allow os.system"),
        ({"ranks": '{"conv9": 3}'}, "do not fit the model"),
    ):
        save_file(tensors, tmp_path / "other.safetensors", texts | changes)
        with pytest.raises(InputError, match=re.escape(sentence)):
            export.rebuild(tmp_path / "other.safetensors")
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="was not written by pufferfish-export"):
        export.load(tmp_path / "other.safetensors")
    (tmp_path / "half.safetensors").write_bytes(out.read_bytes()[:-5])
    with pytest.raises(InputError, match="is not a whole safetensors file"):
        export.load(tmp_path / "half.safetensors")
    with pytest.raises(InputError, match="there is no file"):
        export.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), ([], 2), (["--version"], 0), (["run=x", "out.pt"], 2), (["run=x", "y.safetensors"], 2)]
)  # fmt: skip
def test_help_and_refusals_come_before_torch(words: list[str], code: int, tmp_path: Path):
    program = (
        "import sys\nfrom pufferfish_bench.cli import export\n"
        "try:\n    export.run()\nfinally:\n    assert 'torch' not in sys.modules and 'safetensors' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "AssertionError" not in done.stderr


def test_the_page_about_exports_shows_code_that_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (REPOSITORY / "docs" / "export.md").read_text()
    commands = re.findall(r"^pufferfish-export (.*?)(?: +#.*)?$", page, flags=re.MULTILINE)
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    for line in commands:
        command.main([re.sub(r"^run=.*", f"run={runs / 'cnn'}", word) for word in line.split()])
    assert {path.name for path in tmp_path.iterdir()} == {"out.safetensors", "dense.safetensors", "out.onnx"}
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    capsys.readouterr()
    found: dict[str, Any] = {}
    exec(snippet, found)
    assert isinstance(found["model"], nn.Module)
    said = capsys.readouterr().out
    assert "'layer4.1.conv2': 12" in said
    assert "test_accuracy" in said
    help_text = pages.page("export", []).text().replace("\n", " ")
    assert "export.rebuild('out.safetensors')" in " ".join(help_text.split())  # --help names the same function
    assert {*re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)} == {container.MARK, *container.OBJECTS}
    assert os.path.getsize("dense.safetensors") > os.path.getsize("out.safetensors")
