"""The package as it is shipped: the wheel, the direction of imports, torchvision beside a CPU build of torch."""

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "src" / "pufferfish_bench"

# From the top down: a module may import what stands in a lower line, and a package its own modules.
LAYERS = [
    {"__main__"},
    {"bench"},
    {"translate", "reproduce"},
    {"main"},
    {"composition", "preflight"},
    {"netlab", "report"},
    {"trainer", "methods", "tasks", "reducers", "observers"},
    {"resume"},
    {"surgery", "snapshot"},
    {
        "core",
        "low_rank",
        "pruning",
        "channels",
        "models",
        "checkpoints",
        "precision",
        "run_directory",
        "download",
        "interrupts",
        "memory_format",
        "decoding",
        "network",
        "namespaces",
        "table",
        "typed",
        "sweeps",
    },
    {"checked", "constructors", "low_rank_choice"},
    {"low_rank_layers", "counting"},
    {"stopwatch", "schedules", "optimizers", "records", "machine", "vision", "settings", "recurrent", "triggers", "speech"},
    {"world"},
    {"heartbeat", "rendezvous"},
    {"errors", "processors", "limits", "visible"},
]


def level(module: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if module in layer)


def imported(path: Path) -> set[str]:
    """The modules of the project that a file imports, by the first name below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "pufferfish_bench":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pufferfish_bench."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pufferfish_bench.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path: Path):
    module = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if module == "__init__":
        assert not imported(path)
        return
    for other in imported(path) - {module}:
        assert level(other) > level(module), f"{module} imports {other}"


def test_only_main_and_composition_know_hydra_and_only_world_and_those_who_wrap_torchs_engine_know_torch_distributed():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) hydra", text, re.MULTILINE) or path.name in ("main.py", "composition.py"), path
        text = text.replace('"torch.distributed.run"', "torchrun")  # a program that is started is not known
        assert "torch.distributed" not in text or path.name in ("world.py", "rendezvous.py", "ddp.py", "compression.py"), path


def test_the_wheel_carries_the_configs_and_the_papers_numbers_and_runs_without_the_repository(tmp_path: Path):
    source = tmp_path / "source"  # a copy: what an earlier build left in the repository must not get in
    for name in ("src", "conf", "results/paper"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", source]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    shipped = {str(path.relative_to(tmp_path / "site" / "pufferfish_bench")) for path in (tmp_path / "site").rglob("*.yaml")}
    configs = {f"conf/{path.relative_to(REPOSITORY / 'conf')}" for path in (REPOSITORY / "conf").rglob("*.yaml")}
    assert shipped == configs | {"paper/numbers.yaml"}
    (described,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    fields = Parser().parsestr(described.read_text())
    assert fields["Author"] == "The pufferfish-bench authors"
    assert {place.split(", ")[0] for place in fields.get_all("Project-URL")} >= {"Source", "Issues", "Changelog"}
    assert fields["Requires-Python"] == "<3.14,>=3.10"
    assert fields["Keywords"]
    assert fields.get_all("Classifier")
    code = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    assert code <= {str(path.relative_to(tmp_path / "site" / "pufferfish_bench")) for path in (tmp_path / "site").rglob("*.py")}
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from pufferfish_bench import main\n"
        f"assert main.__file__.startswith({str(tmp_path)!r})\nmain.describe()"
    )
    shown = subprocess.run([sys.executable, "-c", program, "model=vgg19"], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("8,370,634") == 2  # ours and the paper's


def test_the_versions_of_python_are_said_alike_everywhere(tmp_path: Path):
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    allowed = SpecifierSet(setup["options"]["python_requires"])
    named = set(re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"]))
    (check,) = re.findall(r"\$\(PYTHON\) -c '(.*)'", (REPOSITORY / "Makefile").read_text())
    for minor in range(8, 16):
        answer = f"import sys\nsys.version_info = (3, {minor}, 1, 'final', 0)\nsys.version = '3.{minor}.1 of these days'\n{check}"
        done = subprocess.run([sys.executable, "-c", answer], capture_output=True, text=True)
        assert (done.returncode == 0) == (f"3.{minor}.1" in allowed) == (f"3.{minor}" in named) == (10 <= minor <= 13)
        assert f"this is 3.{minor}.1" in done.stderr or not done.returncode


def test_hydra_is_one_whose_instantiate_is_hardened():
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    lines = [line for line in setup["options"]["install_requires"].split("\n") if line and not line.startswith("#")]
    requirements = {found.name: found.specifier for found in map(Requirement, lines)}
    for version, fits in {"1.3.2": False, "1.3.5": False, "1.3.6": True, "1.3.8": True, "1.4.0": False}.items():
        assert (version in requirements["hydra-core"]) == fits, version


def test_torchvision_works_whatever_build_of_torch_is_here():
    program = """
import torch
from pufferfish_bench.vision import torchvision
from torchvision.transforms import v2
v2.RandomResizedCrop(8)(torch.zeros(3, 16, 16, dtype=torch.uint8))
torchvision.models.resnet18(weights=None)
torchvision.datasets.CIFAR10
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_only_where_the_native_ones_cannot_load(loads: bool, tmp_path: Path):
    """A torchvision of our own making, whose library loads or does not; it tells whether nms was declared."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("import torch\ndeclared = hasattr(torch.ops.torchvision, 'nms')\n")
    if not loads:
        (package / "_C.so").write_bytes(b"not a library")
    program = "from pufferfish_bench.vision import torchvision; print(torchvision.declared)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert finished.stdout.strip() == str(not loads), finished.stderr
