"""Train on several hosts on one machine: network namespaces with capped links between them, and a part of one run on each.

    pufferfish netlab --hosts 2 --cap 100mbit -- model=resnet18 method=pufferfish profile=smoke

The processes and the network are removed when the lab ends, however it ends. The hosts share the machine's files and cores,
compute on the CPU, and cannot reach the machine's own network.
"""

import contextlib
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from pufferfish_bench.base import cores
from pufferfish_bench.cli.messages import error_messages
from pufferfish_bench.cli.parser import Parser
from pufferfish_bench.distributed import units
from pufferfish_bench.distributed.lab import INTERFACE, Lab
from pufferfish_bench.training.signals import Interrupts

WHAT = (
    "Trains on several hosts on this machine: network namespaces with capped links between them, and a part of one run on each. "
    "Needs root. Words after -- are settings of pufferfish-run."
)
EXAMPLES = {"pufferfish netlab --hosts 2 --cap 100mbit -- model=resnet18 method=pufferfish profile=smoke": "two hosts"}
PORT = 29500  # free on every host: nothing else runs there
CULPRIT_SECONDS = 1.0  # after a failure: time for the host that caused it to exit too and report why
FAILURE_SECONDS = 5.0  # after a failure: time for the other hosts to exit
SIGNAL_SECONDS = 40.0  # after a signal: time to finish a step and write a checkpoint; torchrun itself waits 30


def wait(
    processes: Sequence[subprocess.Popen], until: Callable[[list[int | None]], object], seconds: float = math.inf
) -> list[int | None]:
    """Wait until a condition on the exit codes holds or the time is up; return the codes, None for a process that still runs."""
    end = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in processes]
        if until(codes) or time.monotonic() > end:
            return codes
        time.sleep(0.02)


def supervise(processes: Sequence[subprocess.Popen], interrupts: Interrupts) -> list[int | None]:
    """The exit codes of the hosts' programs; None for one that was stopped because of a signal or because another one failed.

    `interrupts` passes signals on to the programs; after a failure they get a SIGTERM. The caller kills what still runs then.
    """
    codes = wait(processes, lambda codes: None not in codes or any(codes) or interrupts.count)
    if interrupts.count:
        wait(processes, lambda codes: None not in codes or interrupts.count > 1, SIGNAL_SECONDS)  # a second signal does not wait
    else:
        codes = wait(processes, lambda codes: None not in codes or interrupts.count, CULPRIT_SECONDS)
        for process in processes:
            process.terminate()  # does nothing if it has ended
        wait(processes, lambda codes: None not in codes or interrupts.count, FAILURE_SECONDS)
    return codes


def run(lab: Lab, commands: Sequence[Sequence[str]], environment: dict[str, str], interrupts: Interrupts) -> int:
    """Run one command on each host and return the highest exit code.

    The output of host 0 is shown as it comes, that of the other hosts only if they fail.
    """
    processes: list[subprocess.Popen] = []
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in commands]
        try:
            for host, words in enumerate(commands):
                captured = {"stdout": outputs[host], "stderr": subprocess.STDOUT} if host else {}
                processes.append(lab.start(host, words, env=environment | {"PUFFERFISH_HOST": str(host)}, **captured))
                interrupts.supervise(processes[-1])
            codes = supervise(processes, interrupts)
        finally:
            for process in processes:
                process.kill()  # its own children are killed with the lab
                process.wait()
        for host, (code, output) in enumerate(zip(codes, outputs, strict=True)):
            if code:
                output.seek(0)
                shown = "".join(f"host {host}: {line}" for line in output)
                print(f"{shown}netlab: host {host} ended with {describe(code)}", file=sys.stderr)
    if interrupts.received is not None:
        return 128 + interrupts.received
    return max(128 - code if code < 0 else code for code in codes if code is not None)


def describe(code: int) -> str:
    return f"code {code}" if code > 0 else signal.Signals(-code).name


def training(lab: Lab, host: int, processes: int, overrides: Sequence[str], module: str = "pufferfish_bench") -> list[str]:
    """The command that starts one host's part of a run, or of another module that runs under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    nodes = f"--nnodes {lab.hosts} --node-rank {host} --nproc-per-node {processes}".split()
    return [*torchrun, *nodes, "--master-addr", lab.address(0), "--master-port", str(PORT), "-m", module, *overrides]


def environment(lab: Lab, processes: int) -> dict[str, str]:
    """The environment of the hosts' programs; entries before cores.environment can be overridden from outside."""
    return {
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # otherwise torch warns at each connection that a host has no name
        **cores.environment(lab.hosts * processes),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "CUDA_VISIBLE_DEVICES": "",  # the hosts would share a GPU, and NCCL would bypass the links
        "MASTER_ADDR": lab.address(0),
        cores.LAB: json.dumps({"hosts": lab.hosts, "cap_bits_per_second": lab.cap}),
    }


def arguments(words: Sequence[str] | None) -> Namespace:
    parser = Parser("netlab", WHAT, usage="--hosts N --cap RATE [OPTION ...] -- KEY=VALUE ...", examples=EXAMPLES)
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts")
    parser.add_argument("--cap", required=True, metavar="RATE", help="rate of each host's link in each direction: 50mbit, 1gbit")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="ranks on each host (default: 1)")
    parser.add_argument("--exec", action="store_true", help="run the given program on each host instead of training")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings of pufferfish-run")
    given = parser.parse_args(words)
    if given.processes < 1:
        parser.error(f"--processes must be at least 1, got {given.processes}")
    if given.hosts * given.processes == 1 and not given.exec:
        parser.error("training needs at least 2 hosts, or 2 processes on one host")
    if given.exec and not given.words:
        parser.error("--exec needs a program after --")
    return given


@error_messages()
def main(words: Sequence[str] | None = None) -> None:
    given = arguments(words)
    with Interrupts(children=[]) as interrupts, Lab(hosts=given.hosts, cap=round(units.bits_per_second(given.cap))) as lab:
        hosts = range(lab.hosts)
        commands = [given.words if given.exec else training(lab, host, given.processes, given.words) for host in hosts]
        code = run(lab, commands, environment(lab, given.processes), interrupts)
        sent = ", ".join(f"{lab.traffic(host)[0] / 1e6:.1f}" for host in hosts)
        print(f"netlab: {lab.hosts} hosts at {given.cap}; MB sent by each: {sent}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
