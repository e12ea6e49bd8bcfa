"""model=any: models of torchvision, timm, Hugging Face and of the user's own files, described, trained, resumed, in two ranks."""

import configparser
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.extras import EXTRAS
from pufferfish_bench.cli import describe
from pufferfish_bench.config import signatures
from pufferfish_bench.config.build import composed, config_errors, identify
from tests.support.commands import Command, assert_same_run, interrupt
from tests.support.repository import REPOSITORY
from tests.support.torchrun import run_ranks

SMALL = ("profile=smoke", "epochs=2", "batch_size=16", "dataset.train_images=32", "dataset.test_images=16")
TEXT = ("profile=smoke", "epochs=2", "dataset.train_words=1500", "dataset.test_words=400", "model.net.width=32")
TORCHVISION = "model.net._target_=torchvision.models"
VIT = ("image_size=32", "patch_size=8", "num_layers=2", "num_heads=2", "hidden_dim=32", "mlp_dim=64")
MODELS = {
    "resnet34": ("model=any", f"{TORCHVISION}.resnet34", *SMALL),
    "vit": ("model=any", f"{TORCHVISION}.VisionTransformer", *(f"model.net.{word}" for word in VIT), *SMALL),
    "timm": ("model=any", "model.net._target_=timm.create_model", "model.net.model_name=mobilenetv3_small_050", *SMALL),
    "bert": ("model=hf_encoder", *TEXT),
    "gpt2": ("model=hf_decoder", *TEXT),
    "own": ("model=any", "model.net._target_=my_own_net.Net", *SMALL),
}
OWN_NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, n_out: int = 10, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2)
        self.body = nn.Conv2d(width, width, 3, stride=2)
        self.grouped = nn.Conv2d(width, width, 3, groups=4)
        self.head = nn.Linear(width, n_out)

    def forward(self, images):
        return self.head(self.grouped(self.body(self.stem(images).relu()).relu()).relu().mean((2, 3)))


class Fails(Net):
    def forward(self, images):
        return super().forward(images) * (1 / (1 - self.training))


def nothing():
    return None
"""
# layers that cannot be factorised: a part of the name, and of the reason
UNSUPPORTED = {
    "timm": ("conv_dw", "grouped convolution"),
    "bert": ("decoder", "shared"),
    "gpt2": ("lm_head", "shared"),
    "own": ("grouped", "grouped convolution"),
}


@pytest.fixture(autouse=True)
def own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_net.py").write_text(OWN_NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_net", raising=False)


def record(directory: Path) -> dict:
    return json.loads((directory / "run.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_a_foreign_model_is_described_and_trains_vanilla_and_low_rank(
    invoke: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, name: str
):
    words = MODELS[name]
    in_describe = [word for word in words if not word.startswith(("epochs", "batch_size"))]
    monkeypatch.setattr(sys, "argv", ["pufferfish-describe", *in_describe, "json=true"])
    describe.run()
    described = json.loads(capsys.readouterr().out)
    for method in ("vanilla", "pufferfish"):
        done = invoke(*words, f"method={method}", f"run_dir={method}")
        assert done.returncode == 0, done.stderr
    vanilla, pufferfish = (record(tmp_path / method) for method in ("vanilla", "pufferfish"))
    (operation,) = pufferfish["operations"]
    assert vanilla["summary"]["parameters"] == described["totals"]["vanilla"]["parameters"]
    assert pufferfish["summary"]["parameters"] == described["totals"]["hybrid"]["parameters"] < vanilla["summary"]["parameters"]
    ranks = {row["layer"]: row["rank"] for row in described["layers"] if row["rank"]}
    assert {layer: found["rank"] for layer, found in operation["layers"].items() if layer in ranks} == ranks
    assert operation["left"] == described["left"]
    if name in UNSUPPORTED:
        part, reason = UNSUPPORTED[name]
        assert any(part in layer and reason in why for layer, why in described["left"].items()), described["left"]


def test_a_foreign_model_trains_in_two_ranks_with_powersgd(tmp_path: Path):
    words = ("model=any", "model.net._target_=my_own_net.Net", *SMALL, "method=powersgd", "run_dir=run")
    done = run_ranks(tmp_path, "pufferfish_bench", *words)
    assert done.returncode == 0, done.stderr
    summary = record(tmp_path / "run")["summary"]
    assert record(tmp_path / "run")["world_size"] == 2
    assert 0 < summary["bytes_per_step"] < 4 * summary["parameters"]


def test_a_masked_language_model_that_is_interrupted_ends_like_one_that_is_not(
    invoke: Command, arguments: Callable[..., list[str]], tmp_path: Path
):
    words = ("model=hf_encoder", *TEXT, "method=pufferfish", "epochs=3", "dataset.train_words=6000", "dataset.segment=10")
    whole = invoke(*words, "run_dir=whole")
    assert whole.returncode == 0, whole.stderr
    rows = tmp_path / "stopped" / "epochs.jsonl"
    stopped = interrupt(
        arguments(*words, "run_dir=stopped"), tmp_path, signal.SIGTERM, lambda: rows.is_file() and bool(rows.read_text())
    )
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    resumed = invoke(*words, "run_dir=stopped")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "model.net._target_ is not set"),
        (("model.net._target_=my_own_net.Net", "model.net.depth=3"), "there is no setting model.net.depth; there are"),
        (("model.net._target_=my_own_net.Net", "model.net.n_out=7"), "returns a tensor (1, 7), but dataset.classes=10"),
        (("model.net._target_=my_own_net.nothing",), "model.net._target_=my_own_net.nothing returns NoneType: an nn.Module is"),
        (("model.net._target_=my_own_net.Nett",), "my_own_net has no Nett (did you mean Net?)"),
        ((f"{TORCHVISION}.vit_b_16", "model.net.image_size=64"), "the model fails on an input of 1x3x32x32"),
        ((f"{TORCHVISION}.vit_b_16", "method=eb_train"), "this model has no BatchNorm2d"),
        (
            ("model.net._target_=timm.create_model", "model.net.model_name=mobilenetv3_small_050", "method=eb_train"),
            "method=eb_train cannot prune the channels of this model",
        ),
        (("model.net._target_=timm.create_model", "model.net.model_name=nope"), "Unknown model (nope)"),
        ((f"{TORCHVISION}.resnet18", "model.net.weights=NOPE"), "resnet18 cannot be built: KeyError: 'NOPE'"),
        (
            (f"{TORCHVISION}.googlenet", "model.net.init_weights=false"),
            "the model returns GoogLeNetOutputs for a batch of images in training; a tensor (2, 10) is expected; switch its",
        ),
        (("model.net._target_=my_own_net.Fails",), "fails in training on an input of 2x3x32x32 (ZeroDivisionError: division by"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(invoke: Command, words: tuple[str, ...], sentence: str):
    refused = invoke("model=any", *SMALL, *words)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("model.net.model_type=nope",), "model.net.model_type=nope is not known to transformers"),
        (("model.net.model_type=t5",), "model.net.model_type=t5 is not a decoder"),
        (("model.net.config.hidden=3",), "there is no setting model.net.config.hidden for model_type=gpt2"),
        (("model.net.heads=5",), "model.net.width=32 must be a multiple of model.net.heads=5"),
        (("model.net.positions=8",), "the model fails on a segment of 35 words"),
        (("dataset.carry=official",), "dataset.carry=official is for models with hidden states"),
    ],
)
def test_a_mistake_in_a_model_of_hugging_face_is_one_sentence(invoke: Command, words: tuple[str, ...], sentence: str):
    refused = invoke(*MODELS["gpt2"], *words)
    assert refused.returncode == 2
    assert sentence in refused.stderr


def test_sizes_of_the_data_reach_the_constructor_under_its_own_names():
    def net(*words: str) -> dict:
        with config_errors():
            return dict(composed(["model=any", "profile=smoke", "dataset.classes=7", *words]).model.net)

    classes = "dataset.classes=7"
    target = f"{TORCHVISION}.resnet18"
    assert net(target, classes)["num_classes"] == 7
    assert "image_size" not in net(target)
    assert net(f"{TORCHVISION}.VisionTransformer", "model.net.patch_size=4")["image_size"] == 32
    assert net("model.net._target_=pufferfish_bench.models.vgg.vgg11")["classes"] == 7
    assert net(target, "model.net.num_classes=3")["num_classes"] == 3
    anything = net("model.net._target_=timm.create_model", "model.net.model_name=resnet18")
    assert anything["num_classes"] == 7
    assert not {"classes", "image_size"} & set(anything)  # it takes any keyword, and gets only the first


def test_the_name_and_the_identity_tell_models_apart():
    def run_dir(*words: str) -> str:
        ((directory, _),) = identify(["model=any", "profile=smoke", *words], [1])
        return directory.name

    timm = ("model.net._target_=timm.create_model",)
    named = [
        run_dir(f"{TORCHVISION}.resnet34"), run_dir(f"{TORCHVISION}.resnet50"), run_dir("model.net._target_=my_own_net.Net"),
        run_dir(*timm, "model.net.model_name=resnet26"),
    ]  # fmt: skip
    assert [name.split("-")[0] for name in named] == ["resnet34", "resnet50", "Net", "resnet26"]
    assert run_dir("model.net._target_=my_own_net.Net", "model.net.width=8") != named[2]


def test_constructors_that_hide_their_parameters_accept_any_keyword(tmp_path: Path):
    import timm

    def untyped(**settings):
        return torch.nn.Linear(**settings)

    assert signatures.parameters(timm.create_model) is None
    assert signatures.parameters(untyped) is None
    assert "num_classes" in signatures.parameters(signatures.located("torchvision.models.resnet34", "model.net"))


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path, package: str):
    words = {
        "timm": ("model=any", "model.net._target_=timm.create_model", "model.net.model_name=resnet18"),
        "transformers": ("model=hf_decoder",),
        "wandb": ("tracker=[tensorboard,wandb]",),
        "mlflow": ("tracker=mlflow",),
    }[package]
    program = f"import sys; sys.modules[{package!r}] = None\nfrom pufferfish_bench.cli.run import run; run()"
    done = subprocess.run([sys.executable, "-c", program, *words, "profile=smoke"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{package}, which is not installed: pip install 'pufferfish-bench[{EXTRAS[package]}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_extras_and_the_tests_install_the_optional_packages():
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")

    def packages(extra: str) -> set[str]:
        lines = setup["options.extras_require"][extra].split("\n")
        return {Requirement(line).name for line in lines if line and not line.startswith("#")}

    for package, extra in EXTRAS.items():
        distribution = {"mlflow": "mlflow-skinny"}.get(package, package)
        assert distribution in packages(extra)
        assert packages(extra) <= packages("test")
        page = "tracking.md" if extra in ("wandb", "mlflow") else "extending.md"
        assert f"[{extra}]" in (REPOSITORY / "docs" / page).read_text()
    assert packages("tracking") == packages("wandb") | packages("mlflow")


def test_a_record_of_a_foreign_model_is_not_built_without_permission(invoke: Command, tmp_path: Path):
    from pufferfish_bench.config.restore import restored_model

    assert invoke(*MODELS["own"], "epochs=1", "run_dir=run").returncode == 0
    found = record(tmp_path / "run")
    with pytest.raises(InputError, match=r"my_own_net.Net, which is not a model.net of this package"):
        restored_model(tmp_path / "run", found)
    restored = restored_model(tmp_path / "run", found, allowed=["my_own_net.Net"])
    assert sum(p.numel() for p in restored.parameters()) == found["summary"]["parameters"]
