"""docs/commands.md: its commands run as printed, in one folder, and it names every command."""

import glob
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pufferfish_bench.cli import main
from pufferfish_bench.cli.commands import COMMANDS
from tests.support.repository import REPOSITORY
from tests.support.torchrun import environment

PAGE = (REPOSITORY / "docs" / "commands.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
PRINTED = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
IN_A_SHELL = [line for line in PRINTED if line.startswith("eval")]  # tests/cli/test_entry.py completes with it


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[[str], str]:
    """Runs a printed command to its end, in this process if it can be; its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def execute(line: str) -> str:
        words = [found for word in shlex.split(line) for found in (sorted(glob.glob(word)) if "*" in word else [word])]
        if words[0] == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
            done = subprocess.run(torchrun, env=environment(), capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            return done.stdout
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        code = 0
        try:
            main.main() if words[0] == "pufferfish" else main.begin(words[0].removeprefix("pufferfish-"))
        except SystemExit as exit:
            code = exit.code or 0
        said = capsys.readouterr()
        assert code == 0, (line, said.err)
        return said.out

    return execute


def test_every_command_of_the_page_runs_as_printed(shell: Callable[[str], str], tmp_path: Path):
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
