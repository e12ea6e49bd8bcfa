"""A lab of hosts on one machine: network namespaces behind a switch, with capped links. It does not know what runs on them.

A lab is isolated from the machine's own network and from other labs. If a lab's process is killed with -9, the next lab removes
what it left behind.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pufferfish_bench.base.errors import InputError

PREFIX = "pufferfish-lab-"
OURS = re.compile(rf"{PREFIX}(\d+)-\d+-(?:switch|\d+)")  # process id of the lab, number of the lab, part of it
INTERFACE = "eth0"  # of every host; the other end, on the switch, is link0, link1, ...
MOST_HOSTS = 250  # they share one /24 network
BURST_SECONDS = 0.0006  # how long a link may exceed its cap after a pause: short, or small messages would cross for free
LEAST_BURST = 3_028  # bytes: two packets
QUEUE_SECONDS = 0.05  # a packet that waits longer for a link is dropped


class Lab:
    """Hosts on a switch, each behind a link of `cap` bits per second in each direction. They exist inside the `with` block."""

    def __init__(self, *, hosts: int, cap: int):
        if not 1 <= hosts <= MOST_HOSTS:
            raise InputError(f"--hosts must be between 1 and {MOST_HOSTS}, got {hosts}")
        self.hosts = hosts
        self.cap = cap

    def __enter__(self) -> "Lab":
        check_tools()
        sweep()
        taken = namespaces()
        names = (f"{PREFIX}{os.getpid()}-{number}-" for number in itertools.count())
        self.name = next(name for name in names if name + "switch" not in taken)
        self.switch = self.name + "switch"
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def build(self) -> None:
        try:
            configure(f"ip netns add {self.switch}")
        except RuntimeError as error:  # root inside a container may lack the capability
            raise InputError(f"the network lab cannot create network namespaces here: {error}") from None
        configure(f"ip -n {self.switch} link add switch type bridge")
        configure(f"ip -n {self.switch} link set switch up")
        for host in range(self.hosts):
            here = self.namespace(host)
            configure(f"ip netns add {here}")
            configure(f"ip -n {self.switch} link add link{host} type veth peer name {INTERFACE} netns {here}")
            configure(f"ip -n {self.switch} link set link{host} master switch up")
            configure(f"ip -n {here} address add {self.address(host)}/24 dev {INTERFACE}")
            configure(f"ip -n {here} link set lo up")
            configure(f"ip -n {here} link set {INTERFACE} gso_max_size {largest_packet(self.cap)} up")
            cap = f"rate {self.cap}bit burst {burst(self.cap)} latency {QUEUE_SECONDS * 1000:.0f}ms"
            for where, link in self.ends(host):
                configure(f"tc -n {where} qdisc add dev {link} root tbf {cap}")

    def remove(self) -> None:
        """Kill what runs in the lab and delete its namespaces."""
        remove(name for name in namespaces() if name.startswith(self.name))

    def namespace(self, host: int) -> str:
        return f"{self.name}{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"  # the same in every lab: labs are isolated from each other

    def ends(self, host: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Both ends of a host's link as (namespace, interface): the host's end, which sends, and the switch's, which delivers."""
        return (self.namespace(host), INTERFACE), (self.switch, f"link{host}")

    def traffic(self, host: int) -> tuple[int, int]:
        """Bytes that a host sent and received, as the caps count them: including packet headers."""
        queues = [json.loads(configure(f"tc -n {where} -s -j qdisc show dev {link}")) for where, link in self.ends(host)]
        sent, received = (queue["bytes"] for [queue] in queues)
        return sent, received

    def start(self, host: int, words: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a program on a host, in its own session: Ctrl-C does not reach it. It gets a SIGTERM if this process dies."""
        inside = ["setpriv", "--pdeathsig", "TERM", "nsenter", f"--net=/var/run/netns/{self.namespace(host)}", "--"]
        return subprocess.Popen([*inside, *words], stdin=subprocess.DEVNULL, start_new_session=True, **options)


def burst(cap: int) -> int:
    """Bytes that a link of `cap` bits per second lets pass at once after a pause."""
    return max(LEAST_BURST, int(cap / 8 * BURST_SECONDS))


def largest_packet(cap: int) -> int:
    """Bytes that a host's TCP may hand to its link in one piece: no more than a burst, or the link would have to split them."""
    return min(65_536, int(burst(cap) * 0.95))  # on the link, each 1,448 bytes of it become 1,514


def check_tools() -> None:
    """Refuse to start without root or without the commands that the lab uses."""
    if os.geteuid() != 0:
        raise InputError("the network lab creates network namespaces and must be run as root, for example with sudo")
    packages = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux"}
    for tool, package in packages.items():
        if not shutil.which(tool):
            raise InputError(f"the network lab needs the command {tool}, which was not found; install Debian's package {package}")


def configure(command: str) -> str:
    """Run a command of iproute2 and return its output; RuntimeError if it fails. Ctrl-C does not reach it."""
    finished = subprocess.run(command.split(), capture_output=True, text=True, start_new_session=True)
    if finished.returncode:
        raise RuntimeError(f"{command}: {finished.stderr.strip()}")
    return finished.stdout


def namespaces() -> list[str]:
    """The names of the namespaces of all labs."""
    names = [line.split()[0] for line in configure("ip netns list").splitlines() if line.strip()]
    return [name for name in names if OURS.fullmatch(name)]


def sweep() -> None:
    """Remove what is left of labs whose process is dead."""
    remove(name for name in namespaces() if not lives(int(OURS.fullmatch(name)[1])))


def lives(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def remove(names: Iterable[str]) -> None:
    """Kill what runs in the namespaces and delete them. Another lab may be removing the same ones."""
    for name in names:
        with contextlib.suppress(RuntimeError):  # already deleted
            for _ in range(100):  # until no process is left: one may have started another meanwhile
                processes = configure(f"ip netns pids {name}").split()
                if not processes:
                    break
                for process in processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
                time.sleep(0.02)
            configure(f"ip netns delete {name}")
