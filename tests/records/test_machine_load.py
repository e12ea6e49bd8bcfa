"""The load of the machine during a run: what other processes used, and nothing else, is company."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.records import machine_load, reader
from pufferfish_bench.records.files import RUN, read_json, write_json
from pufferfish_bench.records.machine_load import COMPANY, KEY, Moment

SPIN = "import time\nwhile time.process_time() < 0.5: pass"
seconds = st.floats(0, 1e5)


def moments(*, wall: float, own: float, busy: float | None) -> tuple[Moment, Moment]:
    """Two moments with these differences between their counters."""
    later = None if busy is None else 300.0 + busy
    return Moment(10.0, 0.5, 20.0, None if busy is None else 300.0), Moment(10.0 + wall, 1.25, 20.0 + own, later)


@given(st.floats(0.1, 1e5), seconds, seconds)
def test_what_our_own_processes_use_is_not_company(wall: float, own: float, others: float):
    found = machine_load.between(*moments(wall=wall, own=own, busy=own + others))
    assert found["other_busy_cores"] == pytest.approx(others / wall, abs=1e-3 + 1e-9 * (own + others) / wall)
    assert machine_load.had_company({KEY: [found]}) == (found["other_busy_cores"] > COMPANY)


@given(st.floats(1, 1e5), seconds)
def test_an_idle_machine_is_no_company_although_its_counters_are_rounded(wall: float, own: float):
    for rounding in (-0.02, 0.0, 0.02):
        found = machine_load.between(*moments(wall=wall, own=own, busy=own + rounding))
        assert found["other_busy_cores"] >= 0
        assert not machine_load.had_company({KEY: [found]})


def test_without_the_counters_only_the_load_is_recorded():
    assert machine_load.between(*moments(wall=1.0, own=1.0, busy=None)) == {"load_before": 0.5, "load_after": 1.25}


def test_interrupts_and_waiting_for_the_disk_are_nobodys_and_stolen_time_is_others():
    stat = "cpu  1 20 300 4000 50000 600000 7000000 80000000 900000000 1\ncpu0 9 9 9 9 9 9 9 9 9 9\n"
    assert machine_load.busy_seconds(stat, 100) == (1 + 20 + 300 + 80000000) / 100


def test_the_time_of_child_processes_and_of_their_children_is_our_own():
    before = Moment.now()
    subprocess.run(
        [sys.executable, "-c", f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"], check=True
    )
    after = Moment.now()
    assert after.own - before.own >= 0.5
    assert after.busy - before.busy >= 0.4  # rounded


@pytest.mark.parametrize(
    ("loads", "company"),
    [
        (None, False),  # an older record, or a run started by hand
        ([], False),
        ([{"load_before": 9.0, "load_after": 9.0}], False),  # a system that does not tell
        ([{"load_before": 9.0, "load_after": 9.0, "other_busy_cores": COMPANY}], False),
        ([{"load_before": 0.0, "load_after": 0.0, "other_busy_cores": 0.11}], True),
        ([{"other_busy_cores": 0.0}, {"other_busy_cores": 0.7}, {"other_busy_cores": 0.0}], True),  # one of three sittings
    ],
)
def test_a_run_had_company_if_it_had_in_any_of_its_sittings(loads: list | None, company: bool):
    assert machine_load.had_company({} if loads is None else {KEY: loads}) == company


def test_the_load_is_added_to_the_record_once_for_each_sitting_and_also_after_a_stop(tmp_path: Path):
    path = tmp_path / RUN
    with machine_load.recorded(tmp_path):
        write_json(path, {"format": 2, "settings": {"seed": 1}})
    (first,) = reader.read_run(tmp_path)[KEY]
    assert set(first) == {"load_before", "load_after", "other_busy_cores"}

    def interrupted() -> None:
        with machine_load.recorded(tmp_path):
            write_json(path, read_json(path) | {"resumed": [{"epoch": 1}]})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reader.read_run(tmp_path)[KEY][0] == first
    assert len(read_json(path)[KEY]) == 2
    assert read_json(path)["resumed"] == [{"epoch": 1}]


def test_nothing_is_added_if_nothing_was_trained(tmp_path: Path):
    with machine_load.recorded(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()
    write_json(tmp_path / RUN, {"format": 2, "settings": {}})
    with machine_load.recorded(tmp_path):
        pass
    assert KEY not in read_json(tmp_path / RUN)


def test_a_record_that_another_process_writes_or_that_is_damaged_is_left_alone(tmp_path: Path):
    path = tmp_path / RUN
    hold = (
        "import sys\nfrom pathlib import Path\nfrom pufferfish_bench.records import run_directory\n"
        "with run_directory.exclusive(Path(sys.argv[1])):\n    print(flush=True)\n    sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], **pipes) as other:
        other.stdout.readline()
        with machine_load.recorded(tmp_path):
            write_json(path, {"format": 2, "settings": {}})
        assert KEY not in read_json(path)
        other.communicate("\n")
    with machine_load.recorded(tmp_path):
        path.write_text("{")
    assert path.read_text() == "{"


@pytest.mark.parametrize("damaged", [{}, 1, [1], [{"other_busy_cores": "many"}], [{"load_before": float("inf")}]])
def test_a_record_with_an_impossible_load_is_refused(tmp_path: Path, damaged: object):
    write_json(tmp_path / RUN, {"format": 2, "settings": {}, KEY: damaged})
    with pytest.raises(InputError, match="machine_load has a value of the wrong type or range"):
        reader.read_run(tmp_path)
