"""Fixtures of all tests, and how the test process itself is set up. Shared functions and classes are in tests/support."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import hypothesis
import pytest
import torch

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.cli.run import run as pufferfish_run
from pufferfish_bench.distributed.lab import Lab
from tests.support.commands import Command
from tests.support.parsers import remember_parsed_text

# No deadline: the machine may be busy. The same examples in every run, so that a failure can be reproduced.
hypothesis.settings.register_profile("project", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("project")

remember_parsed_text()

# The models are tiny: more threads only compete for cores, here and in child processes.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# A shell that runs the tests in the background ignores these two, and child processes would inherit that; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def machine_lock_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of the tests neither wait for real runs on this machine nor keep them waiting."""
    os.environ["PUFFERFISH_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


@pytest.fixture(scope="session")
def lab() -> None:
    """Skip where the network lab cannot run: it needs root, network namespaces and tc."""
    try:
        with Lab(hosts=1, cap=200_000_000):
            pass
    except InputError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def arguments() -> Callable[..., list[str]]:
    """The command line of pufferfish-run as a new process."""
    return lambda *overrides: [sys.executable, "-m", "pufferfish_bench", *overrides]


@pytest.fixture
def command(tmp_path: Path, arguments: Callable[..., list[str]]) -> Command:
    """Run pufferfish-run to its end in an empty directory, in a new process."""

    def run(*overrides: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        without_data = {key: value for key, value in os.environ.items() if key != "PUFFERFISH_DATA"}
        return subprocess.run(
            arguments(*overrides),
            cwd=tmp_path,
            env=without_data | (environment or {}),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Command:
    """Run pufferfish-run to its end in an empty directory, in this process: saves the seconds of importing torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PUFFERFISH_DATA", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # main sets it; monkeypatch restores it

    def run(*overrides: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess:
        words = ["pufferfish-run", *overrides]
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        code = 0
        try:
            pufferfish_run()
        except SystemExit as exit:
            code = exit.code
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[[Callable, Iterable[object], str], None]:
    """Check that a command rejects these arguments with exit code 2 and one line that contains a sentence."""

    def check(main: Callable[[list[str]], None], words: Iterable[object], sentence: str) -> None:
        with pytest.raises(SystemExit) as exit:
            main([str(word) for word in words])
        complaint = capsys.readouterr().err
        assert exit.value.code == 2
        assert sentence in complaint
        assert complaint.count("\n") == 1

    return check


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The directory with the real data sets; without one, the test is skipped."""
    root = os.environ.get("PUFFERFISH_DATA")
    if not root:
        pytest.skip("needs real data: set PUFFERFISH_DATA to its directory")
    return Path(root)
