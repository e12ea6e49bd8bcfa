"""The machines of a Slurm job that train one run together."""

from dataclasses import dataclass

PATIENCE = 110  # seconds that torchrun gives its workers to finish a step and write a checkpoint; scripts/ have the same


@dataclass(frozen=True)
class Nodes:
    """Where this process is among the machines of its job."""

    count: int
    rank: int  # of this machine
    first: str  # host name of the machine where all meet
    job: int  # number of the Slurm job

    @property
    def rendezvous(self) -> list[str]:
        """The arguments of torchrun with which the machines find each other."""
        where = f"{self.first}:{port(self.job)}"
        meeting = ["--rdzv-id", str(self.job), "--rdzv-backend", "c10d", "--rdzv-endpoint", where]
        return ["--nnodes", str(self.count), *meeting]


def port(job: int) -> int:
    """Where the machines of a job meet: one port per job, in case jobs share a machine. scripts/slurm.sh has the same."""
    return 20_000 + job % 10_000


def split(workers: int, per_node: int) -> int:
    """The fewest machines with `per_node` GPUs over which the workers are shared equally."""
    return next(count for count in range(-(-workers // per_node), workers + 1) if workers % count == 0)
