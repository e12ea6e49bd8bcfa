"""The network lab with real namespaces, links and signals; and its messages when it cannot run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferfish_bench.cli import netlab
from pufferfish_bench.distributed import lab as namespaces
from pufferfish_bench.distributed import network, units
from pufferfish_bench.distributed.lab import Lab, configure
from pufferfish_bench.records.files import RUN, read_json
from pufferfish_bench.training.signals import Interrupts
from tests.support.repository import REPOSITORY

CAP = 200_000_000
SCRIPT = str(REPOSITORY / "scripts" / "netlab")
MEGABYTE = 10**6

# host 0 listens, the last host sends a megabyte to it
SEND = """
import os, socket, time
if os.environ["PUFFERFISH_HOST"] == "0":
    with socket.create_server(("", 5000)) as server:
        connection, _ = server.accept()
        received = 0
        while piece := connection.recv(65536):
            received += len(piece)
    print("received", received)
else:
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.sendall(bytes(10**6))
"""

# every host writes its process id and keeps running; so does a child process of it
STAY = """
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
for process in (os.getpid(), child.pid):
    pathlib.Path(f"here-{process}").touch()
time.sleep(600)
"""

# every host reports that it got a signal and keeps running
DEAF = (
    """
import os, pathlib, signal
def hear(number, frame):
    pathlib.Path("heard-" + os.environ["PUFFERFISH_HOST"]).touch()
signal.signal(signal.SIGTERM, hear)
"""
    + STAY
)


def words(*program: str, hosts: int = 2, cap: str = "200mbit") -> list[str]:
    return [SCRIPT, "--hosts", str(hosts), "--cap", cap, "--exec", "--", *program]


def run(directory: Path, *program: str, hosts: int = 2) -> subprocess.CompletedProcess:
    return subprocess.run(words(*program, hosts=hosts), cwd=directory, capture_output=True, text=True, timeout=120)


def start(directory: Path, program: str = STAY) -> tuple[subprocess.Popen, list[int]]:
    """A lab of two hosts whose programs keep running, and the ids of all their processes."""
    process = subprocess.Popen(words(sys.executable, "-c", program), cwd=directory, start_new_session=True)
    wait_for(lambda: process.poll() is not None or len(list(directory.glob("here-*"))) == 4)
    assert process.poll() is None
    return process, [int(path.name.removeprefix("here-")) for path in directory.glob("here-*")]


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def left_by(process: int) -> list[str]:
    return [name for name in namespaces.namespaces() if name.startswith(f"{namespaces.PREFIX}{process}-")]


def alive(processes: Sequence[int]) -> list[int]:
    return [process for process in processes if namespaces.lives(process)]


@pytest.mark.usefixtures("lab")
def test_hosts_reach_each_other_and_their_traffic_crosses_their_links(tmp_path: Path):
    environment = {"PATH": os.environ["PATH"]}
    with Lab(hosts=3, cap=CAP) as lab, Interrupts(children=[]) as interrupts:
        send = [sys.executable, "-c", SEND]
        commands = [send, ["true"], send]
        assert netlab.run(lab, commands, environment | {"MASTER_ADDR": lab.address(0)}, interrupts) == 0
        (_, received), (idle, _), (sent, _) = (lab.traffic(host) for host in range(3))
    assert MEGABYTE < sent < 1.2 * MEGABYTE  # only headers are added
    assert MEGABYTE < received < 1.2 * MEGABYTE
    assert idle < 0.1 * MEGABYTE


@pytest.mark.usefixtures("lab")
def test_both_ends_of_every_link_are_capped():
    with Lab(hosts=2, cap=CAP) as lab:
        for host in range(2):
            for where, link in ((lab.namespace(host), "eth0"), (lab.switch, f"link{host}")):
                [queue] = json.loads(configure(f"tc -n {where} -j qdisc show dev {link}"))
                assert (queue["kind"], queue["root"]) == ("tbf", True)
                assert queue["options"]["rate"] == CAP / 8


@pytest.mark.usefixtures("lab")
def test_a_run_records_its_network_and_no_collective_is_faster_than_the_cap(tmp_path: Path):
    small = (
        "profile=smoke",
        "model.net.width=0.05",
        "dataset.train_images=32",
        "dataset.test_images=8",
        "batch_size=8",
        "epochs=1",
    )
    lab = [SCRIPT, "--hosts", "2", "--cap", "500mbit", "--", "model=resnet18", "method=vanilla", "run_dir=run", *small]
    finished = subprocess.run(lab, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    recorded = read_json(tmp_path / "run" / RUN)["network"]
    assert (recorded["hosts"], recorded["ranks"], recorded["cap_bits_per_second"]) == (2, 2, 500_000_000)
    for name, collective in (("allreduce", network.ring_allreduce), ("allgather", network.allgather)):
        size, seconds = recorded[name]["points"][-1]
        at_once = 2 * namespaces.burst(500_000_000)  # the burst passes without waiting
        assert seconds > collective(size - at_once, 2, 0, 500_000_000 / 8)


@pytest.mark.usefixtures("lab")
def test_the_machine_itself_sees_no_new_interface():
    before = configure("ip -brief link")
    with Lab(hosts=2, cap=CAP):
        assert configure("ip -brief link") == before


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("codes", [(0, 0), (3, 0), (0, 4), (3, 4)])
def test_the_exit_code_is_the_worst_of_the_hosts_and_nothing_is_left_behind(tmp_path: Path, codes: tuple[int, int]):
    program = f"echo $PPID > lab-$PUFFERFISH_HOST; test $PUFFERFISH_HOST = 0 && exit {codes[0]}; exit {codes[1]}"
    finished = run(tmp_path, "sh", "-c", program)
    assert finished.returncode == max(codes)
    assert left_by(int((tmp_path / "lab-0").read_text())) == []


@pytest.mark.usefixtures("lab")
def test_a_failing_host_ends_the_others_and_its_exit_code_is_returned(tmp_path: Path):
    finished = run(
        tmp_path, "sh", "-c", "echo $$ > pid-$PUFFERFISH_HOST; test $PUFFERFISH_HOST = 1 && exit 7; exec sleep 600", hosts=3
    )
    assert finished.returncode == 7
    assert alive([int(path.read_text()) for path in tmp_path.glob("pid-*")]) == []


@pytest.mark.usefixtures("lab")
def test_a_host_that_is_killed_is_named_with_its_signal(tmp_path: Path):
    finished = run(tmp_path, "sh", "-c", "test $PUFFERFISH_HOST = 1 && kill -9 $$; exec sleep 600")
    assert finished.returncode == 128 + signal.SIGKILL
    assert "host 1 ended with SIGKILL" in finished.stderr


@pytest.mark.usefixtures("lab")
def test_the_output_of_host_0_is_shown_and_that_of_others_only_if_they_fail(tmp_path: Path):
    program = "echo I am $PUFFERFISH_HOST; test $PUFFERFISH_HOST != 2"
    finished = run(tmp_path, "sh", "-c", program, hosts=3)
    assert finished.stdout == "I am 0\n"
    assert "host 2: I am 2\n" in finished.stderr
    assert "I am 1" not in finished.stderr


@pytest.mark.usefixtures("lab")
def test_programs_find_the_labs_settings_in_their_environment(tmp_path: Path):
    workers = f"LOCAL_WORLD_SIZE=3 {sys.executable} -c 'from pufferfish_bench.base import cores; print(cores.workers())'"
    program = f'echo "$PUFFERFISH_NETWORK"; ip -brief address show "$GLOO_SOCKET_IFNAME"; {workers}'
    network_of_run, address, here = run(tmp_path, "sh", "-c", program).stdout.splitlines()
    assert here == "6"  # two hosts with three processes each, all on this machine
    assert json.loads(network_of_run) == {"hosts": 2, "cap_bits_per_second": CAP}
    assert "10.77.0.1/24" in address


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_processes_and_leaves_nothing_behind(tmp_path: Path, number: int):
    process, inside = start(tmp_path)
    assert len(left_by(process.pid)) == 3
    os.killpg(process.pid, number)  # as a terminal does
    assert process.wait(timeout=60) == 128 + number
    assert alive(inside) == []
    assert left_by(process.pid) == []


@pytest.mark.usefixtures("lab")
def test_programs_have_time_to_finish_until_a_second_signal(tmp_path: Path):
    process, inside = start(tmp_path, DEAF)
    process.terminate()
    wait_for(lambda: len(list(tmp_path.glob("heard-*"))) == 2)
    assert sorted(alive(inside)) == sorted(inside)
    process.terminate()
    assert process.wait(timeout=netlab.SIGNAL_SECONDS / 2) == 128 + signal.SIGTERM
    assert alive(inside) == []
    assert left_by(process.pid) == []


@pytest.mark.usefixtures("lab")
def test_a_killed_lab_is_removed_by_the_next_one_and_a_running_lab_is_not(tmp_path: Path):
    for name in ("killed", "living"):
        (tmp_path / name).mkdir()
    (killed, its_processes), (living, others) = start(tmp_path / "killed"), start(tmp_path / "living")
    assert len(left_by(killed.pid)) == 3
    killed.kill()
    killed.wait(timeout=60)
    with Lab(hosts=1, cap=CAP):
        assert left_by(killed.pid) == []
        assert alive(its_processes) == []
        assert len(left_by(living.pid)) == 3
        assert alive(others) == others
    living.terminate()
    assert living.wait(timeout=60) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("lab")
def test_an_exception_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), Lab(hosts=1, cap=CAP):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="tc"), Lab(hosts=1, cap=-1):  # half built
        pass
    assert left_by(os.getpid()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--hosts", "2", "--cap", "100"], "'100' is not a rate"),
        (["--hosts", "2", "--cap", "0mbit"], "'0mbit' is not a rate"),
        (["--hosts", "0", "--cap", "1gbit"], "--hosts must be between 1 and 250, got 0"),
    ],
)
def test_a_mistake_is_refused_with_a_clear_message_and_code_2(refused: Callable[..., None], arguments: list[str], complaint: str):
    refused(netlab.main, [*arguments, "--", "model=resnet18"], complaint)


def test_without_root_the_lab_is_refused_with_a_clear_message(refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused(netlab.main, ["--hosts", "2", "--cap", "100mbit", "--", "model=resnet18"], "root")


def test_without_its_tools_the_lab_names_the_package_to_install(
    refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(netlab.main, ["--hosts", "2", "--cap", "100mbit", "--", "model=resnet18"], "iproute2")


@pytest.mark.parametrize(("cap", "bits"), [("50mbit", 50_000_000), ("2.5gbit", 2_500_000_000), ("800kbit", 800_000)])
def test_rates_are_decimal(cap: str, bits: int):
    assert units.bits_per_second(cap) == bits


@given(cap=st.integers(10**5, 10**11))
def test_a_packet_with_all_its_headers_passes_in_one_burst(cap: int):
    assert namespaces.largest_packet(cap) * 1514 / 1448 <= namespaces.burst(cap)
