"""Imports point downwards, and heavy or framework-specific libraries stay in their packages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "src" / "pufferfish_bench"
# from the bottom to the top: a module may import its own package and what stands in an earlier line
ORDER = [
    {"base"},
    {"core", "lowrank", "pruning", "records"},
    {"models", "distributed"},
    {"training", "trackers"},
    {"reducers", "methods", "tasks"},
    {"trainer"},
    {"config"},
    {"paper"},
    {"report"},
    {"bench"},
    {"advisor", "export"},
    {"cli"},
    {"__main__"},
]
WITHOUT_THE_RUNNER = {"lowrank": {"base", "lowrank"}, "pruning": {"base", "pruning"}, "models": {"base", "lowrank", "models"}}
FRAMEWORKS = {
    "hydra": ("config", "cli"),
    "omegaconf": ("config", "cli"),
    "tensorboard": ("trackers",),
    "wandb": ("trackers",),
    "mlflow": ("trackers",),
}


def imports(source: str) -> Iterator[str]:
    """The dotted names that a module imports at run time, also inside functions; `if TYPE_CHECKING:` does not count."""
    tree = ast.parse(source)
    skipped = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inside in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next(number for number, line in enumerate(ORDER) if name in line)


def upward(here: str, source: str) -> list[str]:
    """The imports of a module in package `here` that do not point downwards."""
    rooms = {name.split(".")[1] for name in imports(source) if name.startswith("pufferfish_bench.")} - {here, "__version__"}
    allowed = WITHOUT_THE_RUNNER.get(here)
    return sorted(name for name in rooms if (name not in allowed if allowed else level(name) >= level(here)))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path):
    here, source = room(path), path.read_text()
    if here == "__init__":
        assert not [name for name in imports(source) if name.startswith("pufferfish_bench")]
        return
    assert upward(here, source) == []


def test_a_planted_upward_import_is_found():
    assert upward("training", "from pufferfish_bench.trainer import Trainer\n") == ["trainer"]
    assert upward("lowrank", "def f():\n    from pufferfish_bench import core\n") == ["core"]
    assert upward("core", "if TYPE_CHECKING:\n    from pufferfish_bench.distributed.world import World\n") == []


def test_every_package_has_its_place():
    found = {room(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert found == set().union(*ORDER)
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "core.py", "trainer.py"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_stay_in_their_packages(framework: str):
    users = {room(path) for path in PACKAGE.rglob("*.py") if any(n.split(".")[0] == framework for n in imports(path.read_text()))}
    assert users <= set(FRAMEWORKS[framework])


def test_torch_distributed_is_known_to_the_world_and_to_those_who_wrap_torchs_engine():
    users = {
        path.name for path in PACKAGE.rglob("*.py") if any(n.startswith("torch.distributed") for n in imports(path.read_text()))
    }
    assert users == {"world.py", "rendezvous.py", "ddp.py", "compression.py", "switch.py"}


def test_tests_share_code_only_through_their_support_package():
    tests = REPOSITORY / "tests"
    for path in tests.rglob("*.py"):
        shared = [name for name in imports(path.read_text()) if name.split(".")[0] in ("tests", "conftest")]
        others = [name for name in shared if not f"{name}.".startswith("tests.support.")]
        assert not others, f"{path.relative_to(tests)} imports {others}"
