"""A lab for real networks on one machine: hosts with capped links between them, and a part of a run on each.

    scripts/netlab --hosts 2 --cap 100mbit -- model=resnet18 method=pufferfish profile=smoke

When the lab ends, however it ends, its processes and its network go. The hosts share the machine's files and cores, compute on
the CPU, and see nothing of the outer network.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from pufferfish_bench import processors
from pufferfish_bench.errors import InputError
from pufferfish_bench.namespaces import INTERFACE, Lab

PORT = 29500  # free on every host: nothing else runs there
CULPRIT_SECONDS = 1.0  # after a failure: for the host that caused it to end too and say why
FAILURE_SECONDS = 5.0  # after a failure: for the others to end
SIGNAL_SECONDS = 40.0  # after a signal: for a step to end and a checkpoint to be written; torchrun itself waits 30
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


class Signals:
    """Remembers the signals that ask for an end, so that none of them can interrupt the taking down."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __enter__(self) -> "Signals":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self.receive) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)


def wait(
    processes: Sequence[subprocess.Popen], until: Callable[[list[int | None]], object], seconds: float = math.inf
) -> list[int | None]:
    """The exit codes so far, None for what still runs, once `until` holds of them or the time is up."""
    end = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in processes]
        if until(codes) or time.monotonic() > end:
            return codes
        time.sleep(0.02)


def supervise(processes: Sequence[subprocess.Popen], signals: Signals) -> list[int | None]:
    """The exit codes of the hosts' programs; None for one that was stopped because another failed or a signal came.

    Each gets the signal that came, or SIGTERM when another failed, and some time. Who then still runs, the lab ends with itself.
    """

    def tell(number: int) -> None:
        for process in processes:
            process.send_signal(number)  # does nothing to one that has ended

    codes = wait(processes, lambda codes: None not in codes or any(codes) or signals.received)
    if signals.received:
        tell(signals.received[0])
        wait(processes, lambda codes: None not in codes or signals.received[1:], SIGNAL_SECONDS)  # a second one does not wait
    else:
        codes = wait(processes, lambda codes: None not in codes or signals.received, CULPRIT_SECONDS)
        tell(signal.SIGTERM)
        wait(processes, lambda codes: None not in codes or signals.received, FAILURE_SECONDS)
    return codes


def run(lab: Lab, commands: Sequence[Sequence[str]], environment: dict[str, str], signals: Signals) -> int:
    """Run a command on each host and give the worst exit code. Host 0 speaks; the others are heard if they fail."""
    processes: list[subprocess.Popen] = []
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in commands]
        try:
            for host, words in enumerate(commands):
                silent = {"stdout": outputs[host], "stderr": subprocess.STDOUT} if host else {}
                processes.append(lab.start(host, words, env=environment | {"PUFFERFISH_HOST": str(host)}, **silent))
            codes = supervise(processes, signals)
        finally:
            for process in processes:
                process.kill()  # what it has started goes with the lab
                process.wait()
        for host, (code, output) in enumerate(zip(codes, outputs, strict=True)):
            if code:
                output.seek(0)
                said = "".join(f"host {host}: {line}" for line in output)
                print(f"{said}netlab: host {host} ended with {describe(code)}", file=sys.stderr)
    if signals.received:
        return 128 + signals.received[0]
    return max(128 - code if code < 0 else code for code in codes if code is not None)


def describe(code: int) -> str:
    return f"code {code}" if code > 0 else signal.Signals(-code).name


def bits_per_second(cap: str) -> int:
    """What `100mbit` means."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", cap.lower())
    if not match or float(match[1]) == 0:
        raise InputError(f"--cap {cap} is not a rate; give a number above 0 and kbit, mbit or gbit, such as 100mbit")
    return int(float(match[1]) * UNITS[match[2]])


def training(lab: Lab, host: int, processes: int, overrides: Sequence[str]) -> list[str]:
    """The words that start a host's part of a run."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    torchrun = shutil.which("torchrun", path=beside)
    if torchrun is None:
        raise InputError(f"torchrun is not beside {sys.executable}: install the project into this environment, or use its .venv")
    nodes = f"--nnodes {lab.hosts} --node-rank {host} --nproc-per-node {processes}".split()
    return [torchrun, *nodes, "--master-addr", lab.address(0), "--master-port", str(PORT), "-m", "pufferfish_bench", *overrides]


def environment(lab: Lab, processes: int) -> dict[str, str]:
    """What the programs are told; what stands before the environment of this process can be set from outside."""
    return {
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # else it warns at each connection that a host has no name
        **processors.environment(lab.hosts * processes),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "CUDA_VISIBLE_DEVICES": "",  # the hosts would share a GPU, and NCCL would go past the links
        "MASTER_ADDR": lab.address(0),
        processors.LAB: json.dumps({"hosts": lab.hosts, "cap_bits_per_second": lab.cap}),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        usage="netlab --hosts N --cap RATE [--processes P] [--exec] -- setting=value ...",
        description="Train on several hosts on this machine, over real TCP and capped links. Needs root.",
    )
    parser.add_argument("--hosts", type=int, required=True, help="how many")
    parser.add_argument("--cap", required=True, help="of each host's link, each way: 50mbit, 1gbit")
    parser.add_argument("--processes", type=int, default=1, help="ranks on each host (default: 1)")
    parser.add_argument("--exec", action="store_true", help="the words are a program to run on each host")
    parser.add_argument("words", nargs="*", metavar="setting=value", help="as for pufferfish-run")
    given = parser.parse_args(arguments)
    if given.processes < 1:
        parser.error(f"--processes {given.processes} must be at least 1")
    if given.hosts * given.processes == 1 and not given.exec:
        parser.error("training needs at least 2 hosts, or 2 processes on one")
    if given.exec and not given.words:
        parser.error("--exec needs a program after --")
    try:
        with Signals() as signals, Lab(hosts=given.hosts, cap=bits_per_second(given.cap)) as lab:
            hosts = range(lab.hosts)
            commands = [given.words if given.exec else training(lab, host, given.processes, given.words) for host in hosts]
            code = run(lab, commands, environment(lab, given.processes), signals)
            sent = ", ".join(f"{lab.traffic(host)[0] / 1e6:.1f}" for host in hosts)
            print(f"netlab: {lab.hosts} hosts at {given.cap}; MB sent by each: {sent}", file=sys.stderr)
            return code
    except InputError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
