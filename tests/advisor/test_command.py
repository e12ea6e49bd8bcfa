"""pufferfish-advise as a user calls it: advice for each kind of model, settings that run, refusals."""

import fnmatch
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from pufferfish_bench.advisor import check, networks, overrides
from pufferfish_bench.advisor.advice import methods_in
from pufferfish_bench.advisor.overrides import Chosen
from pufferfish_bench.base import dense_layers
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli import advise as command_line
from pufferfish_bench.cli import advisor_check
from pufferfish_bench.config import batches, checks, parts
from pufferfish_bench.config.build import composed
from pufferfish_bench.config.settings import plain
from pufferfish_bench.distributed import forecast
from pufferfish_bench.distributed.world import single_process
from pufferfish_bench.report import advice as report
from tests.support.commands import SMALL_TEXT, Command
from tests.support.repository import REPOSITORY
from tests.support.torchrun import environment, run_ranks

TOY = ("profile=smoke", "model.net.width=0.05", "batch_size=4")
QUICK = ("quick=true", "ratios=[0.5]")
CHOSEN = {
    "allreduce": Chosen("allreduce", {}), "ddp": Chosen("ddp", {}), "fp16": Chosen("fp16", {"dtype": "float16"}),
    "powersgd2": Chosen("powersgd", {"rank": 2, "seed": 1}), "powersgd4": Chosen("powersgd", {"rank": 4}),
    "signum": Chosen("signum", {"momentum": 0.9}), "topk": Chosen("topk", {"share": 0.01, "_partial_": True}),
}  # fmt: skip
Advise = Callable[..., dict[str, Any]]


@pytest.fixture
def advise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Advise:
    """Run pufferfish-advise in this process; return its JSON file."""

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr(sys, "argv", ["pufferfish-advise", *words, "out=advice/here"])
        command_line.run()
        return json.loads((tmp_path / "advice" / "here.json").read_text())

    return run


def start(
    *words: str, cwd: Path, program: tuple[str, ...] = ("-m", "pufferfish_bench.cli.advise")
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *program, *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )  # fmt: skip


def test_the_command_prints_layers_methods_and_a_recommendation_and_writes_a_file_and_a_chart(tmp_path: Path):
    done = start("model=resnet18", *TOY, *QUICK, "network=1gbit", "workers=[2,8]", "out=found/x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = ["x.json", "x.png", "x.svg"]
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == written
    said = [line for line in done.stdout.splitlines() if line.startswith("written")]
    assert said == [f"written: found/{name}" for name in written]
    found = json.loads((tmp_path / "found" / "x.json").read_text())
    assert [each["workers"] for each in found["recommendations"]] == [2, 8]
    for each in found["recommendations"]:
        assert each["sentence"] in done.stdout
        doubt = "from two rounds only, no basis for a decision: "
        assert each["sentence"].startswith(f"{doubt}at 1 Gbit/s and {each['workers']} workers: ")
        started = f"torchrun --nproc-per-node {each['workers']} -m pufferfish_bench model=resnet18 profile=smoke"
        assert each["command"].startswith(f"{started} model.net.width=0.05 batch_size=4 method=")
    assert "accuracy" in done.stdout
    names = [row["method"] for row in found["forecasts"] if row["workers"] == 2]
    assert names[:7] == [
        "vanilla",
        "DDP",
        "fp16",
        "PowerSGD rank 2",
        "PowerSGD rank 4",
        "Signum (SGD without momentum)",
        "top-k 1 %",
    ]
    for method in methods_in(found):  # the file holds what its own forecasts were made from
        [row] = [row for row in found["forecasts"] if row["workers"] == 8 and row["method"] == method.label]
        network = networks.parse("1gbit", "50us")
        assert row["seconds"] == pytest.approx(forecast.step_seconds(method, 8, network.links))
        assert row["bytes"] == method.bytes_sent


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_text_models_are_measured_too(model: str, advise: Advise):
    found = advise(f"model={model}", *SMALL_TEXT[model], *QUICK)
    assert found["batch_size"] == {"lstm": 20, "transformer": 32}[model]
    kinds = {layer["kind"] for layer in found["layers"]}
    assert kinds == {"lstm": {"LSTM"}, "transformer": {"Linear"}}[model]
    assert found["methods"][0]["messages"] == [["allreduce", 4 * found["parameters"]["full-rank"]]]


def test_a_model_that_a_run_refuses_is_refused(advise: Advise, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        advise("model=any", "model.net._target_=tests.advisor.test_command.Named", "profile=smoke", "batch_size=4", *QUICK)
    assert "the model returns dict for a batch of images; a tensor (1, 10) is expected" in capsys.readouterr().err


class Named(nn.Module):
    """Returns a mapping, as a model with several outputs does."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, num_classes)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(images.mean((2, 3)))}


def test_json_goes_to_standard_output_alone(advise: Advise, capsys: pytest.CaptureFixture):
    found = advise("model=resnet18", *TOY, *QUICK, "batch=task", "dataset.train_images=8", "dataset.test_images=4", "json=true")
    assert json.loads(capsys.readouterr().out) == found


def test_a_trained_run_adds_stable_ranks(advise: Advise, invoke: Command, capsys: pytest.CaptureFixture, tmp_path: Path):
    small = ("profile=smoke", "model.net.width=0.05", "batch_size=8")
    data = ("dataset.train_images=32", "dataset.test_images=8", "epochs=2", "run_dir=run")
    assert invoke("model=resnet18", "method=pufferfish", *small, *data).returncode == 0
    found = advise("model=resnet18", *small, *QUICK, "run=run")
    assert all(1 - 1e-4 <= layer["stable_rank"] <= min(layer["shape"]) for layer in found["layers"])
    factored = [layer for layer in found["layers"] if layer["rank"]]
    assert all(layer["stable_rank"] <= layer["rank"] + 1e-3 for layer in factored)  # its weights have this rank
    assert factored
    assert all(layer["truncated_to"] == layer["rank"] for layer in factored)
    assert not any("truncated_to" in layer for layer in found["layers"] if not layer["rank"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"the run has truncated the weights of {len(factored)} layers to their rank" in said
    with pytest.raises(SystemExit):
        advise("model=resnet18", "profile=smoke", "model.net.width=0.1", *QUICK, "run=run")
    assert "give the settings of the run" in capsys.readouterr().err


def test_a_full_rank_run_warns_of_layers_whose_rank_is_too_low(advise: Advise, invoke: Command):
    small = ("profile=smoke", "model.net.width=0.05", "batch_size=8")
    data = ("dataset.train_images=32", "dataset.test_images=8", "epochs=2", "run_dir=run")
    assert invoke("model=resnet18", "method=vanilla", *small, *data).returncode == 0
    found = advise("model=resnet18", *small, *QUICK, "run=run", "model.low_rank.rank_ratio=0.01")  # rank 1
    assert not any("truncated_to" in layer for layer in found["layers"])
    above = [layer["layer"] for layer in found["layers"] if layer["rank"] and layer["stable_rank"] > layer["rank"] == 1]
    assert above
    faster = found | {"layers": [layer | {"factor": layer["rank"] is not None} for layer in found["layers"]]}
    warnings = report.stable_rank_warnings(faster)
    assert [each.split()[4] for each in warnings] == above
    nothing = [layer | {"factor": False} for layer in found["layers"]]
    assert report.stable_rank_warnings(found | {"layers": nothing}) == []


def test_a_narrow_terminal_keeps_the_advice_on_layers(advise: Advise):
    found = advise("model=resnet18", *TOY, "quick=true", "ratios=[0.5,0.3]")
    text = io.StringIO()
    report.layers(found).show(Console(file=text, width=80))
    heading = text.getvalue().split("layer4.1.conv2")[0]
    left_out = text.getvalue().split("Left out to fit 80 columns: ")[1]
    assert all(name in heading for name in ("layer", "weights", "rank", "advice"))
    assert "1/2" in left_out
    assert "Columns 1/2, 0.3: at this fraction" in " ".join(left_out.split())
    for name in ("advice", "weights,", "rank,"):
        assert f" {name}" not in f" {left_out.split('. Set')[0].replace('weights at rank', '').replace('full rank', '')},"


def test_settings_of_reducers_and_folders_of_configs_reach_labels_and_commands(advise: Advise, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    words = ("reducers.powersgd2.rank=3", "reducers.powersgd4.rank=3", "reducers.topk.share=0.05", "reducer@reducers.signum=sbq")
    found = advise("--config-dir", str(tmp_path / "mine"), "model=resnet18", *TOY, *QUICK, *words)
    full_rank = {method["label"]: method for method in found["methods"] if method["model"] == "full-rank"}
    assert list(full_rank) == ["vanilla", "DDP", "fp16", "PowerSGD rank 3", "SBQ", "top-k 5 %"]
    assert full_rank["PowerSGD rank 3"]["overrides"] == ["method=vanilla", "reducer=powersgd", "reducer.rank=3"]
    assert full_rank["top-k 5 %"]["overrides"] == ["method=vanilla", "reducer=topk", "reducer.share=0.05"]
    assert not full_rank["SBQ"]["other_optimizer"]
    command = found["recommendations"][0]["command"]
    assert command.startswith(f"torchrun --nproc-per-node 16 -m pufferfish_bench --config-dir {tmp_path / 'mine'} model=resnet18")
    assert (found["epochs"], found["warmup_epochs"]) == (4, 1)  # of the recipe


@pytest.mark.parametrize("words", [["~model.low_rank"], ["model=any", "model.net._target_=tests.support.nets.Pool"]])
def test_a_model_without_layers_to_factorise_gets_advice_on_the_other_methods(words: list[str], advise: Advise):
    model = ["model=resnet18", *TOY] if len(words) == 1 else ["profile=smoke", "batch_size=4"]
    found = advise(*model, *words, *QUICK)
    assert {method["model"] for method in found["methods"]} == {"full-rank"}
    assert list(found["left"]) == ["the model itself"]
    assert not any(layer["factor"] for layer in found["layers"])


def test_layers_that_are_left_for_the_same_reason_share_a_line(advise: Advise, capsys: pytest.CaptureFixture):
    found = advise("model=resnet18", *TOY, *QUICK, "model.low_rank.keep=auto", "model.low_rank.first=auto")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not factorised")]
    assert lines == list(dense_layers.sentences(found["left"]))
    assert len(lines) < len(found["left"])


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Advise:
    """Run pufferfish-advise as if every model were measured in no time; return its JSON."""
    vanilla = forecast.Method(
        "vanilla", "full-rank", "allreduce", {"forward": 1.0}, 0.0, 0.0, 0.0, (("allreduce", 8),), False, 0, 1,
        overrides=("method=vanilla", "reducer=allreduce"),
    )  # fmt: skip

    def measure(config: Any, network: networks.Network, choices: dict[str, str]) -> tuple[dict[str, Any], networks.Network]:
        found = {"batch_size": config.batch_size, "epochs": config.epochs, "warmup_epochs": config.warmup_epochs, "rounds": 7}
        return found | {"methods": [vanilla.as_data()], "includes_slower_layers": False}, network

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(command_line, "measure", measure)
        monkeypatch.setattr(sys, "argv", ["pufferfish-advise", *words, "json=true"])
        command_line.run()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("words", "batch_size"),
    [
        (["model=resnet18", "workers=16"], 8),  # the recipe's 128 images, divided
        (["model=resnet18", "workers=48"], 128),  # which do not divide them: each worker has 128
        (["model=resnet18", "workers=[16,32]"], 128),
        (["model=resnet18", "workers=16", "batch_size=32"], 32),
        (["model=resnet18", "workers=16", "profile=smoke"], 64),  # that of the recipe for each worker
        (["model=resnet18", "workers=16", "schedule.batch=256"], 16),
        (["model=lstm", "workers=2..1024"], 20),
        (["model=lstm", "workers=16", "profile=cpu"], 20),
        (["model=any", "model.net._target_=tests.support.nets.Pool", "workers=16", "schedule.batch=null"], 128),
    ],
)
def test_the_printed_command_trains_each_worker_with_the_batch_that_was_measured(
    words: list[str], batch_size: int, unmeasured: Advise, monkeypatch: pytest.MonkeyPatch
):
    found = unmeasured(*words)
    assert found["batch_size"] == batch_size
    for each in found["recommendations"]:
        command = shlex.split(each["command"])
        settings = command[command.index("pufferfish_bench") + 1 :]
        assert settings == each["overrides"]
        monkeypatch.setenv("WORLD_SIZE", str(each["workers"]))
        config = composed(settings)
        checks.check_numbers(config)  # is accepted
        assert (config.workers, config.batch_size) == (each["workers"], batch_size)
        assert each["global_batch"] == batches.record(config)["global_batch"] == batch_size * each["workers"]


def test_the_advice_says_which_batch_it_measured_and_whether_it_is_that_of_the_recipe(unmeasured: Advise):
    measured = "measured with a batch of {} on each worker, with which the command below trains."
    assert report.batch_sentence(unmeasured("model=resnet18", "workers=16")) == measured.format(8)
    assert report.batch_sentence(unmeasured("model=resnet18", "workers=16", "profile=smoke")) == measured.format(64)
    chosen_for = "but the learning rate of this recipe was chosen for {}: see schedule.scale in docs/many-workers.md."
    said = report.batch_sentence(unmeasured("model=lstm", "workers=2..1024"))
    assert said == (
        f"{measured.format(20)} The global batch is then 20 x workers (40 with 2 workers, 20,480 with 1,024 workers), "
        f"{chosen_for.format(20)}"
    )
    said = report.batch_sentence(unmeasured("model=resnet18", "workers=16", "batch_size=32"))
    assert said == f"{measured.format(32)} The global batch is then 32 x workers (512 with 16 workers), {chosen_for.format(128)}"


def test_the_command_starts_the_machines_of_a_cloud_instance(unmeasured: Advise):
    def started(*words: str) -> tuple[str, str]:
        found = unmeasured("model=resnet18", *words)
        return found["recommendations"][0]["command"].split(" -m ")[0], report.machines_sentence(found)

    several = "--rdzv-id pufferfish --rdzv-backend c10d --rdzv-endpoint $MASTER:29500"
    everywhere = "on all machines at the same time; MASTER is the address of one of them: see docs/many-workers.md."
    here = "on one machine; for several see docs/many-workers.md."
    assert started("network=p3.8xlarge", "workers=16") == (f"torchrun --nnodes 4 {several} --nproc-per-node 4", everywhere)
    assert started("network=p3.2xlarge", "workers=8") == (f"torchrun --nnodes 8 {several} --nproc-per-node 1", everywhere)
    for words in (("network=p3.8xlarge", "workers=2"), ("network=p3.8xlarge", "workers=6"), ("network=10gbit", "workers=16")):
        assert started(*words) == (f"torchrun --nproc-per-node {words[1].removeprefix('workers=')}", here)


def test_a_model_of_the_users_has_its_own_name(unmeasured: Advise):
    assert unmeasured("model=any", "model.net._target_=tests.support.nets.Pool")["model"] == "Pool"
    assert unmeasured("model=vgg19")["model"] == "vgg19"


@pytest.fixture(scope="module")
def methods() -> dict[str, tuple[str, ...]]:
    """Every reducer on a network of which the advisor leaves some layers."""
    ranks = {"layer4.1.conv1": 5, "layer4.1.conv2": 3}
    layers = overrides.of_layers(ranks, {}, ["conv1", "layer4.1.conv1", "layer4.1.conv2", "linear"], {"layer4.1.conv1": 5})
    return {key: ("method=pufferfish", *chosen.words(has_momentum=True), *layers) for key, chosen in CHOSEN.items()}


@pytest.mark.parametrize("key", CHOSEN)
def test_the_settings_of_every_method_compose_and_fit_together(key: str, methods: dict[str, tuple[str, ...]]):
    config = composed(["model=resnet18", "profile=smoke", "model.net.width=0.1", *methods[key]])
    assert plain(config.model.low_rank)["ranks"] == {"layer4.1.conv2": 3}
    assert plain(config.model.low_rank)["keep"] == ["conv1", "linear"]
    world = single_process()
    built = parts.build_parts(config, world)
    if key != "ddp":  # needs torchrun
        parts.try_parts(built, config, world)


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_signum_gets_an_optimizer_without_momentum(model: str):
    config = composed([f"model={model}", *SMALL_TEXT[model]])
    words = CHOSEN["signum"].words(has_momentum="momentum" in config.optimizer)
    config = composed([f"model={model}", *SMALL_TEXT[model], "method=vanilla", *words])
    parts.try_parts(parts.build_parts(config, single_process()), config, single_process())


def test_the_recommended_layers_are_those_that_a_run_factorises(invoke: Command, tmp_path: Path):
    data = ("dataset.train_images=16", "dataset.test_images=8", "batch_size=8", "epochs=2", "run_dir=run")
    names = ["conv1", *(f"layer{n}.{block}.conv{c}" for n in range(1, 5) for block in (0, 1) for c in (1, 2)), "linear"]
    names += [f"layer{n}.0.shortcut.conv" for n in (2, 3, 4)]
    ranks = {"layer4.1.conv1": 16, "layer3.0.conv2": 2}
    words = overrides.of_layers(ranks, {}, names, {"layer4.1.conv1": 16})
    done = invoke("model=resnet18", "profile=smoke", "method=pufferfish", "reducer=powersgd", "reducer.rank=4", *words, *data)
    assert done.returncode == 0, done.stderr
    [operation] = json.loads((tmp_path / "run" / "run.json").read_text())["operations"]
    assert {name: layer["rank"] for name, layer in operation["layers"].items()} == ranks


def test_names_that_look_like_numbers_reach_the_run_unchanged():
    names = ["0.10", "0.30", "1.30", "2.conv", "12.conv", "7", "fc"]
    ranks = {"0.30": 3, "1.30": 5, "2.conv": 6, "12.conv": 7, "7": 2}
    config = composed(["model=resnet18", *overrides.of_layers(ranks, {}, names, {"0.30": 4})])
    found = plain(config.model.low_rank)
    assert found["keep"] == ["0.10", "fc"]
    assert found["first"] is None
    assert {tuple(fnmatch.filter(names, str(pattern))): rank for pattern, rank in found["ranks"].items()} == {
        (name,): rank for name, rank in ranks.items()
    }
    assert overrides.of_layers({"a": 3}, {"a": 3}, ["a", "b"], {}) == ()


def test_only_the_settings_that_a_run_has_are_passed_on():
    given = ["model=vgg19", "network=10gbit", "+model.net.x=1", "workers=2..8", "run=a", "batch_size=3", "out=x", "~model.kind"]
    assert overrides.shared(given) == ["model=vgg19", "+model.net.x=1", "~model.kind"]  # the advice names the batch itself


def test_the_network_is_measured_between_the_ranks_of_torchrun(tmp_path: Path):
    words = ("model=resnet18", *TOY, *QUICK, "network=measured", "workers=2", "out=x")
    done = run_ranks(tmp_path, "pufferfish_bench.cli.advise", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["processes"] == 2
    assert found["network"]["links"]["allreduce"]["bandwidth"] > 0
    assert done.stdout.count("workers: ") == 1  # rank 1 prints nothing


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("network=fast", "network=fast is not known"),
        ("network=measured", "network=measured needs at least 2 workers"),
        ("workers=1", "workers=1 must be a number from 2"),
        ("workers=8..2", "workers=8..2 must be a range"),
        ("batch_size=0", "batch_size=0 must be a whole number of at least 1"),
        ("latency=5", "'5' is not a time"),
        ("ratios=[2]", "ratios=[2] must be a list"),
        ("run=nowhere", "run=nowhere is not a directory"),
        ("batch=all", "batch=all is not known"),
        ("layers=no", "layers=no is not known"),
        ("warmup_epochs=300", "warmup_epochs=300 must be below epochs=300"),
        ("out=/dev/null/x", "out=/dev/null/x: the folder /dev/null cannot be written to"),
        ("reducer@reducers.topk=ddp", "reducer@reducers.topk=ddp cannot be compared; allowed: fp16"),
        ("model=resnet", "model=resnet is not known"),
    ],
)
def test_mistakes_are_refused_in_one_sentence_before_torch_is_imported(word: str, sentence: str, tmp_path: Path):
    program = (
        "import sys\nfrom pufferfish_bench.cli.advise import run\n"
        "try:\n    run()\nexcept SystemExit as exit:\n    assert exit.code == 2\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = start(word, cwd=tmp_path, program=("-c", program))
    assert done.returncode == 0, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"]])
def test_help_and_settings_do_not_wait_for_torch(flags: list[str], tmp_path: Path):
    program = "import sys\nfrom pufferfish_bench.cli.advise import run\nrun()\nassert 'torch' not in sys.modules"
    done = start(*flags, cwd=tmp_path, program=("-c", program))
    assert done.returncode == 0, done.stderr
    assert "network" in done.stdout


def test_networks_are_rates_files_runs_and_cloud_instances(tmp_path: Path):
    assert networks.parse("8gbit", "2ms").link == networks.Link(2e-3, 1e9)
    assert networks.parse("p3.2xlarge", "50us").link.bandwidth == 1.25e9
    assert (networks.parse("p3.8xlarge", "50us").gpus, networks.parse("8gbit", "50us").gpus) == (4, None)
    (tmp_path / "own.json").write_text('{"bandwidth": "8mbit", "latency": 0.5}')
    assert networks.parse(str(tmp_path / "own.json"), "50us").link == networks.Link(0.5, 1e6)
    measured = {"network": {kind: {"latency": 0.1, "bandwidth": 7.0} for kind in ("allreduce", "allgather")}}
    (tmp_path / "run.json").write_text(json.dumps(measured))
    for path in (tmp_path, tmp_path / "run.json"):
        assert networks.parse(str(path), "50us").links["allgather"] == networks.Link(0.1, 7.0)
    for text in ("[]", "{}", "no", '{"bandwidth": 0}', '{"bandwidth": "8mbit", "latency": -1}', '{"allreduce": 3}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError):
            networks.parse(str(tmp_path / "bad.json"), "50us")
    (tmp_path / "bare.json").write_text('{"bandwidth": 10, "latency": "50us"}')
    with pytest.raises(InputError, match=r'bandwidth=10 in .*bare.json has no unit: write it as text with one, such as "10gbit"'):
        networks.parse(str(tmp_path / "bare.json"), "50us")
    for entry in networks.cloud().values():
        assert entry["source"].startswith("https://")
        assert entry["date"]


def test_workers_are_a_number_a_list_or_a_range():
    assert networks.worker_counts(16) == [16]
    assert networks.worker_counts([8, 2, 2]) == [2, 8]
    assert networks.worker_counts("2..1024") == [2**power for power in range(1, 11)]
    assert networks.worker_counts("3..20") == [3, 4, 8, 16, 20]


def test_the_models_of_the_check_compose_and_have_runs_for_all_methods(tmp_path: Path):
    found = check.settings(toy=False)
    for case in check.cases(found):
        multirun, *words = case.run_words(found["common"], found["timed_steps"], tmp_path)
        assert multirun == "--multirun"
        swept = {"method=vanilla,pufferfish", "reducer=allreduce,powersgd"}
        assert swept <= set(words)
        config = composed([word for word in words if word not in swept])
        assert config.epochs == 1
        for method, reducer in check.LABELS:
            own = composed([word for word in words if word not in swept] + [f"method={method}", f"reducer={reducer}"])
            assert Path(own.run_dir) == tmp_path / f"{method}-{reducer}"
            assert check.label_of(Path(own.run_dir)) == check.LABELS[method, reducer]
        assert config.batch_size == case.batch_size
    with pytest.raises(InputError, match="--models nonsense is not known"):
        check.cases(found, ["nonsense"])


@pytest.mark.usefixtures("lab")
def test_the_check_compares_predictions_with_runs_in_the_lab(tmp_path: Path):
    done = start("--toy", "--out", "found", cwd=tmp_path, program=("-m", "pufferfish_bench.cli.advisor_check"))
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "found" / "check.json").read_text())
    rows = record["rows"]
    assert record.keys() >= {"commit", "dirty", "versions", "hardware", "date", "settings"}
    assert (record["settings"]["caps"], list(record["settings"]["models"])) == (["1gbit"], ["resnet18"])
    assert [row["method"] for row in rows] == list(check.LABELS.values())
    table = (tmp_path / "found" / "README.md").read_text()
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert f"{100 * row['error']:+.1f} %" in table
    assert check.summary(rows) in table


def test_the_check_refuses_mistakes(refused: Callable[..., None]):
    refused(
        advisor_check.main,
        ["--models", "resnet99"],
        "--models resnet99 is not known (did you mean resnet34 or resnet18?); allowed: resnet18",
    )
    refused(advisor_check.main, ["--caps", "fast"], "'fast' is not a rate")


def test_the_commands_of_the_manual_run(tmp_path: Path):
    text = (REPOSITORY / "docs" / "advisor.md").read_text()
    block = text.split("```bash\n")[1].split("```")[0]
    commands = [shlex.split(line.partition(" #")[0]) for line in block.splitlines() if line.startswith("pufferfish-advise")]
    assert len(commands) >= 2
    for _, *words in commands:
        small = [*words, *QUICK, "profile=smoke", "batch_size=4"]
        done = start(*small, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "workers: " in done.stdout
