"""Imitations of Slurm's commands on one machine, with the behaviour that our code relies on.

$FAKE_SLURM is the directory of the cluster. `queue` there has a file for each job that waits or runs, named like the job.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

# Starts the command on every node, and passes signals on to all of them, but SIGTERM ends them at once. In the file of the job
# it notes the processes, which a test signals.
SRUN = """
import os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words = words[1:] if words[0] == "--unbuffered" or "=" in words[0] else words[2:]
count = os.environ["SLURM_JOB_NUM_NODES"]
nodes = []
def to_all(number, frame):
    for node in nodes:
        node.send_signal(signal.SIGKILL if number == signal.SIGTERM else number)
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, to_all)
for node in range(int(count)):
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_NTASKS": count}
    own["SLURM_JOB_NODELIST"] = ",".join(["localhost"] * int(count))
    nodes.append(subprocess.Popen(words, env=os.environ | own, start_new_session=True))
if "FAKE_SLURM_ENTRY" in os.environ:
    with open(os.environ["FAKE_SLURM_ENTRY"], "w") as entry:
        entry.write(" ".join(str(node.pid) for node in nodes))
sys.exit(max(abs(node.wait()) for node in nodes))
"""
# notes what it is asked to queue again
SCONTROL = """
import os, sys
from pathlib import Path
home, (task, *words) = Path(os.environ["FAKE_SLURM"]), sys.argv[1:]
if [task, *words[:1]] == ["show", "hostnames"]:
    print("\\n".join(["127.0.0.1"] * int(os.environ["SLURM_JOB_NUM_NODES"])))
elif [task, *words[:1]] == ["show", "job"]:
    state, preempted = (os.environ.get(f"FAKE_SLURM_{name}") for name in ("JOB_STATE", "PREEMPTED"))
    print(f"JobId={words[1]} JobName=x JobState={state or 'RUNNING'} Reason=None PreemptTime={preempted}")
else:
    assert task == "requeue", sys.argv
    with (home / "requeued").open("a") as file:
        file.write(f"requeue {words[0]}\\n")
    if (home / "queue").exists():
        (home / "queue" / "again" / words[0]).touch()
    sys.exit(int(os.environ.get("FAKE_SLURM_REFUSED", "0")))
"""


def install(tools: Path, commands: Mapping[str, str]) -> None:
    """Write Python programs as commands into a folder."""
    for name, code in commands.items():
        (tools / name).write_text(f"#!{sys.executable}\n{code}")
        (tools / name).chmod(0o755)
