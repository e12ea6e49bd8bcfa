"""Runs commands as the documentation prints them."""

import glob
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pufferfish_bench.cli import main
from tests.support.repository import REPOSITORY
from tests.support.torchrun import environment


def printed(page: str) -> list[str]:
    """The commands in the fenced blocks of a page that are not code of another language; a command may go on in the next line."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    blocks = [re.sub(r"\\\n\s*", "", block) for language, block in fences if language in ("", "bash")]
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in (re.sub(r"\s+#.*$|^#.*$", "", line) for line in lines) if line]


def in_sentences(page: str) -> list[str]:
    """The commands that the sentences of a page mention, in backquotes."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`((?:make|pip|source|pufferfish-\w+|torchrun)\s[^`]+)`", text)]


class Shell:
    """Runs a command to its end in the current folder: in this process if it is one of ours, with two ranks under torchrun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def __call__(self, command: str) -> str:
        """What it printed. It must succeed."""
        words = [found for word in shlex.split(command) for found in (sorted(glob.glob(word)) if "*" in word else [word])]
        while "=" in words[0]:
            self.monkeypatch.setenv(*words.pop(0).split("=", 1))
        if not words[0].startswith("pufferfish"):
            return self.in_a_process(words)
        self.monkeypatch.setattr(sys, "argv", words)
        self.capsys.readouterr()
        code = 0
        try:
            main.main() if words[0] == "pufferfish" else main.begin(words[0].removeprefix("pufferfish-"))
        except SystemExit as exit:
            code = exit.code or 0
        said = self.capsys.readouterr()
        assert code == 0, (command, said.err)
        return said.out

    def in_a_process(self, words: list[str]) -> str:
        if words[0] == "torchrun":
            words = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        elif words[0].startswith("scripts/"):
            words[0] = str(REPOSITORY / words[0])
        elif words[0] == "make":
            words = [*words, "-s", f"BIN={Path(sys.executable).parent}", "INSTALLED=", "-C", str(REPOSITORY)]
        path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
        done = subprocess.run(words, env=environment() | {"PATH": path}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout
