"""The package as it is shipped: the wheel, its requirements, torchvision with a CPU build of torch."""

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

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "src" / "pufferfish_bench"


def test_the_wheel_contains_the_configs_and_the_papers_numbers_and_runs_without_the_repository(tmp_path: Path):
    source = tmp_path / "source"  # a copy, so that files of an earlier build do not get into the wheel
    for name in ("src", "conf"):
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
    assert shipped == configs | {"paper/numbers.yaml", "paper/specifications.yaml", "advisor/check.yaml", "advisor/cloud.yaml"}
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
        "from pufferfish_bench.cli import describe\n"
        f"assert describe.__file__.startswith({str(tmp_path)!r})\ndescribe.run()"
    )
    shown = subprocess.run([sys.executable, "-c", program, "model=vgg19"], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("8,370,634") == 2  # ours and the paper's


def test_the_supported_python_versions_are_the_same_everywhere(tmp_path: Path):
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


def test_only_versions_of_hydra_with_a_hardened_instantiate_are_allowed():
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    lines = [line for line in setup["options"]["install_requires"].split("\n") if line and not line.startswith("#")]
    requirements = {found.name: found.specifier for found in map(Requirement, lines)}
    for version, fits in {"1.3.2": False, "1.3.5": False, "1.3.6": True, "1.3.8": True, "1.4.0": False}.items():
        assert (version in requirements["hydra-core"]) == fits, version


def test_torchvision_works_with_the_installed_build_of_torch():
    program = """
import torch
from pufferfish_bench.models.torchvision_import import torchvision
from torchvision.transforms import v2
v2.RandomResizedCrop(8)(torch.zeros(3, 16, 16, dtype=torch.uint8))
torchvision.models.resnet18(weights=None)
torchvision.datasets.CIFAR10
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_only_when_the_native_ones_cannot_be_loaded(loads: bool, tmp_path: Path):
    """A fake torchvision, whose library loads or does not, reports whether nms was declared."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("import torch\ndeclared = hasattr(torch.ops.torchvision, 'nms')\n")
    if not loads:
        (package / "_C.so").write_bytes(b"not a library")
    program = "from pufferfish_bench.models.torchvision_import import torchvision; print(torchvision.declared)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert finished.stdout.strip() == str(not loads), finished.stderr
