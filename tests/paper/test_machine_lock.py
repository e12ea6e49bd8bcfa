"""The lock of a machine: who measures time is alone, others share, and no way to end a process leaves it locked."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.paper import machine_lock, run_lock, tables
from pufferfish_bench.paper.machine_lock import LOCK, WAITING

HOLDER = """
import sys
from pathlib import Path
from pufferfish_bench.paper import machine_lock
name, alone, inside = sys.argv[1], sys.argv[2] == "alone", sys.argv[3]

def note(what):
    with Path("log").open("a") as log:
        log.write(f"{name} {what}\\n")

with machine_lock.held(exclusive=alone):
    note("in")
    exec(inside)
    print("in", flush=True)
    sys.stdin.readline()
    note("out")
"""


class Holder:
    """A process that holds the lock from when it prints "in" until it is released."""

    def __init__(self, name: str, kind: str, inside: str):
        words = [sys.executable, "-c", HOLDER, name, kind, inside]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        return self.process.stdout.readline().strip()

    def release(self) -> None:
        self.process.communicate("\n", timeout=60)


@pytest.fixture(autouse=True)
def an_own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUFFERFISH_LOCKS", str(tmp_path))


@pytest.fixture
def holder() -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(name: str, kind: str, inside: str = "") -> Holder:
        started.append(Holder(name, kind, inside))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def is_free() -> bool:
    with machine_lock.opened(LOCK) as file:
        return machine_lock.locked(file, fcntl.LOCK_EX)


def test_runs_that_measure_no_time_hold_the_lock_together(holder):
    first, second = holder("first", "together"), holder("second", "together")
    assert first.says() == second.says() == "in"  # neither has ended


def test_who_measures_time_waits_for_all_others_and_keeps_out_those_who_come_later(holder):
    first, second = holder("first", "together"), holder("second", "together")
    assert first.says() == second.says() == "in"
    timing = holder("timing", "alone")
    assert timing.says() == WAITING[True]
    late = holder("late", "together")
    assert late.says() == WAITING[False]  # otherwise runs that follow each other would keep `timing` waiting for ever
    first.release()
    second.release()
    assert timing.says() == "in"
    timing.release()
    assert late.says() == "in"
    late.release()
    steps = Path("log").read_text().splitlines()
    assert sorted(steps[:2]) == ["first in", "second in"]
    assert steps[2:] == ["first out", "second out", "timing in", "timing out", "late in", "late out"]


def test_two_that_measure_time_take_turns(holder):
    first = holder("first", "alone")
    assert first.says() == "in"
    second = holder("second", "alone")
    assert second.says() == WAITING[True]
    first.release()
    assert second.says() == "in"
    second.release()
    assert Path("log").read_text().splitlines() == ["first in", "first out", "second in", "second out"]


STARTED = """
import subprocess
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, close_fds=False)
Path("child").write_text(str(child.pid))
"""
FORKED = """
import os, time
ready, tell = os.pipe()
child = os.fork()
if not child:
    os.write(tell, b"x")
    os.close(1)
    time.sleep(600)
os.read(ready, 1)
Path("child").write_text(str(child))
"""


@pytest.mark.parametrize("inside", [STARTED, FORKED], ids=["started", "forked"])
def test_kill_releases_the_lock_even_if_a_child_process_survives(holder, inside: str):
    killed = holder("killed", "alone", inside)
    assert killed.says() == "in"
    assert not is_free()
    child = int(Path("child").read_text())
    try:
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(timeout=60)
        os.kill(child, 0)  # it lives
        assert is_free()
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_error_releases_the_lock():
    def fail() -> None:
        with machine_lock.held(exclusive=True):
            assert not is_free()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert is_free()


COMMANDS = {  # with the start of the line before the sentence
    "count": (["reproduce", "table1", "--profile", "smoke"], "run 1 of "),
    "run": (["reproduce", "table8", "--profile", "smoke", "--seeds", "1", "--no-probe"], "run 1 of "),
    "probe": (["reproduce", "table8", "--profile", "smoke", "--seeds", "1"], "running the first steps of "),
    "run that measures time": (["reproduce", "figure7", "--profile", "smoke", "--seeds", "1", "--no-probe"], "run 1 of "),
    "bench": (["bench", "svd", "--quick"], ""),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_command_that_waits(tmp_path: Path, command: str, number: int):
    (module, *words), before = COMMANDS[command]
    lines = [""]
    with machine_lock.held(exclusive=True):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = subprocess.Popen([sys.executable, "-m", f"pufferfish_bench.cli.{module}", *words], **pipes)
        while lines[-1] not in WAITING.values():
            lines.append(started.stdout.readline().strip())
            assert lines[-1], started.communicate()
        started.send_signal(number)
        rest, complaint = started.communicate(timeout=60)
    assert lines[-1] == WAITING[command in ("bench", "run that measures time")]
    assert lines[-2].startswith(before)
    assert started.returncode == 128 + number
    assert complaint.splitlines()[-1].startswith("stopped; ")
    assert rest == ""  # the sentence was printed once, and nothing was run
    assert {path.name for path in (tmp_path / "results").rglob("*") if path.is_file()} <= {run_lock.LOCK}


def test_a_cell_measures_time_if_one_of_its_numbers_is_a_time():
    trained = [cell for name in ("table6", "figure4b") for cell in tables.read(name, "cpu").cells if cell.has_seeds]
    assert trained
    assert all(cell.measures_time for cell in trained)
    assert not any(cell.measures_time for name in ("table1", "table4", "table8") for cell in tables.read(name, "cpu").cells)
    kinds = {cell.name: cell.measures_time for cell in tables.read("figure5", "cpu").cells}
    assert {name for name, measures in kinds.items() if measures} == {"vanilla", "pufferfish", "lth"}  # others are counted


def test_the_lock_can_be_opened_by_all_users_whatever_the_umask_of_the_first_one(tmp_path: Path):
    before = os.umask(0o077)
    try:
        with machine_lock.held(exclusive=True):
            pass
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_folder_of_locks_that_is_not_there_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUFFERFISH_LOCKS", str(tmp_path / "missing"))
    with (
        pytest.raises(InputError, match=r"cannot open the lock .*missing.*; PUFFERFISH_LOCKS=DIR"),
        machine_lock.held(exclusive=False),
    ):
        pass
