"""docs/commands.md: its commands run as printed, in one folder, and it names every command."""

import re
from pathlib import Path

import pytest

from pufferfish_bench.cli.commands import COMMANDS
from tests.support.repository import REPOSITORY
from tests.support.shell import Shell, printed

PAGE = (REPOSITORY / "docs" / "commands.md").read_text()
PRINTED = printed(PAGE)
IN_A_SHELL = [line for line in PRINTED if line.startswith("eval")]  # tests/cli/test_entry.py completes with it


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys)


def test_every_command_of_the_page_runs_as_printed(shell: Shell, tmp_path: Path):
    said = {line: shell(line) for line in PRINTED if line not in IN_A_SHELL}
    for line, output in said.items():
        assert output, line
        if "--help-settings" in line:
            assert "hidden: 1500" in output
        elif "run_dir=" in line or "torchrun" in line:
            assert output.count("next:") == 1, line  # with two ranks too
    compared = said["pufferfish-compare"]
    assert all(f"files: results/runs/{name}" in compared for name in ("low", "vanilla"))
    assert "★" in compared
    assert {path.name for path in (tmp_path / "results").glob("curves*")} == {"curves.png", "curves.svg"}
    assert (tmp_path / "dense.safetensors").stat().st_size > 1000


def test_the_page_has_every_command():
    for name, command in COMMANDS.items():
        assert re.search(rf"^pufferfish[ -]{name}\b", PAGE, flags=re.MULTILINE), name
        assert not command.script or f"pufferfish-{name}" in PAGE, name
