"""Run the experiments of rank_experiments.py in two ranks, and keep the outcome of each one apart.

A failed experiment ends the processes, since the other rank may wait in a collective; the rest runs in new ones.
"""

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from pufferfish_bench.distributed.world import join
from tests.support.rank_experiments import EXPERIMENTS, FACTORISATION
from tests.support.torchrun import RANKS, run_ranks


class Outcomes:
    """What each rank returned, by experiment."""

    def __init__(self, folder: Path, experiments: Iterable[str] = EXPERIMENTS):
        self.folder = folder
        self.failed: dict[str, str] = {}
        waiting = list(experiments)
        while waiting:
            done = run_ranks(folder, "tests.support.ranks", str(folder), *waiting)
            while waiting and self.complete(waiting[0]):
                waiting.pop(0)
            if waiting:
                self.failed[waiting.pop(0)] = done.stderr

    def complete(self, experiment: str) -> bool:
        return all((self.folder / experiment / f"rank{rank}.pt").exists() for rank in range(RANKS))

    def __getitem__(self, experiment: str) -> list[Any]:
        """The results of rank 0, 1, ...; raises with the errors of all ranks if the experiment failed."""
        assert experiment not in self.failed, f"{experiment} failed:\n{self.failed[experiment]}"
        return [torch.load(self.folder / experiment / f"rank{rank}.pt") for rank in range(RANKS)]


def run_experiments(folder: Path, names: Iterable[str]) -> None:
    """One rank's part, up to the first experiment that fails."""
    torch.set_num_threads(1)
    world = join("cpu", timeout=120, warn_after=60)
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        try:
            result = (EXPERIMENTS | FACTORISATION)[name](world, folder / name)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # an orderly exit could wait for the other rank
        torch.save(result, folder / name / f"rank{world.rank}.pt")
        world.barrier()  # no rank begins the next experiment while another is still in this one, or has failed in it


if __name__ == "__main__":
    run_experiments(Path(sys.argv[1]), sys.argv[2:])
