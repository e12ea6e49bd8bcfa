"""The paper's Figure 4 (b) over real, capped links: a short run of every method for each number of hosts and each cap (root).

python -m pufferfish_bench.bench.lab [--hosts 2,4] [--caps 100mbit,300mbit,1gbit] [--steps 5] [--methods vanilla,signum] [--draw]

A cell that is done is not run again, unless it had another number of steps than is asked for; one that fails is named at the
end. The records go to results/lab/; of all that are there, the table and the picture go to results/figures/, and so does what
they predict for other networks.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pufferfish_bench import checked
from pufferfish_bench.errors import InputError
from pufferfish_bench.namespaces import MOST_HOSTS
from pufferfish_bench.netlab import bits_per_second
from pufferfish_bench.records import RUN, keep
from pufferfish_bench.report import breakdown, whatif
from pufferfish_bench.speech import spoken_errors

METHODS = {
    "vanilla": ("method=vanilla",),
    "pufferfish": ("method=pufferfish",),
    "powersgd": ("method=powersgd",),
    "signum": ("method=signum",),
    "pufferfish+powersgd": ("method=pufferfish", "reducer=powersgd", "reducer.rank=4"),
}
BATCH, STEPS = 32, 5
# ResNet-18 as it is, on embedded images; without a warm-up, so that every step is one of the method's
COMMON = (
    "model=resnet18", "dataset=synthetic_images", "dataset.test_images=10", "epochs=1", "warmup_epochs=0", f"batch_size={BATCH}",
    "untimed_steps=1", "measure_wait=true", "schedule.learning_rate=1e-3",
)  # fmt: skip
WORK, RECORDS, FIGURES = Path("results/runs/lab"), Path("results/lab"), Path("results/figures")
CIFAR = "50000"  # images of an epoch, for what the figures scale to
NOT_THE_PAPERS = (
    f"ResNet-18 on embedded images of CIFAR-10's shape, batch {BATCH} a worker, on CPUs. The paper's figure 4 (c) is of "
    "ResNet-50 on ImageNet, measured on GPUs: this forecast is not of that net."
)


def cell(method: str, hosts: int, cap: str, steps: int, further: Sequence[str] = ()) -> list[str]:
    """The words that run one cell; `further` settings come last."""
    of_cell = (f"dataset.train_images={images(hosts, steps)}", f"run_dir={work(method, hosts, cap, steps)}")
    words = (*METHODS[method], *COMMON, *of_cell, *further)
    return [sys.executable, "-m", "pufferfish_bench.netlab", "--hosts", str(hosts), "--cap", cap, "--", *words]


def images(hosts: int, steps: int) -> int:
    return BATCH * hosts * steps


def name(method: str, hosts: int, cap: str) -> str:
    return f"{method}-{hosts}hosts-{cap}"


def work(method: str, hosts: int, cap: str, steps: int) -> Path:
    """Where a cell is run."""
    return WORK / f"{name(method, hosts, cap)}-{steps}steps"


def done(folder: Path, images: int | None = None) -> bool:
    """Whether there is a finished run; where a number of images is asked for, of so many."""
    kept = checked.read_run(folder) if (folder / RUN).is_file() else {}
    with checked.asking(folder):
        return "finished" in kept and images in (None, kept["settings"]["dataset"]["train_images"])


def host_counts(words: str) -> list[int]:
    """Numbers of hosts, separated by commas, for argparse."""
    counts = [int(word) if word.isdecimal() else 0 for word in words.split(",")]
    if not all(2 <= count <= MOST_HOSTS for count in counts):
        raise argparse.ArgumentTypeError(f"{words}: must be numbers between 2 and {MOST_HOSTS}, such as 2,4")
    return counts


def link_rates(words: str) -> list[str]:
    """Rates of links, separated by commas: the largest first, as what is predicted for others is predicted from there."""
    try:
        return sorted(words.split(","), key=bits_per_second, reverse=True)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def method_names(words: str) -> list[str]:
    """Names of methods, separated by commas."""
    unknown = [word for word in words.split(",") if word not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(METHODS)}")
    return words.split(",")


def step_count(word: str) -> int:
    """A number of steps of which the first is not timed."""
    if not word.isdecimal() or int(word) < 2:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number of at least 2: the first step is not timed")
    return int(word)


def main(arguments: Sequence[str], further: Sequence[str] = ()) -> int:
    """Run the cells that are missing, with `further` settings if there are any, and draw all that there are."""
    parser = argparse.ArgumentParser(
        prog="python -m pufferfish_bench.bench.lab", description="Run the lab's cells and draw Figure 4 (b). Needs root."
    )
    parser.add_argument("--hosts", type=host_counts, default="2,4")
    parser.add_argument("--caps", type=link_rates, default="100mbit,300mbit,1gbit")
    parser.add_argument("--methods", type=method_names, default=",".join(METHODS))
    steps_help = f"of each cell; the first is not timed (default: {STEPS}, or what is there)"
    parser.add_argument("--steps", type=step_count, help=steps_help)
    parser.add_argument("--draw", action="store_true", help="run nothing: draw the records that are there")
    given = parser.parse_args(arguments)
    if given.draw:
        draw()
        return 0
    cells = [(method, hosts, cap) for hosts in given.hosts for cap in given.caps for method in given.methods]
    failed, steps = [], given.steps or STEPS
    for number, (method, hosts, cap) in enumerate(cells, start=1):
        label = name(method, hosts, cap)
        if not done(RECORDS / label, given.steps and images(hosts, given.steps)):
            print(f"cell {number} of {len(cells)}: {label}", flush=True)
            if subprocess.run(cell(method, hosts, cap, steps, further)).returncode:
                failed.append(label)
                continue
            keep(work(method, hosts, cap, steps), RECORDS / label)
    draw()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def draw() -> None:
    """The figures of all cells that were ever done."""
    runs = recorded()
    if runs:
        breakdown.main([*runs, "--out", str(FIGURES / "figure4b-lab")])
        whatif.main([*runs, "--samples", CIFAR, "--note", NOT_THE_PAPERS, "--out", str(FIGURES / "figure4c-whatif")])


def recorded() -> list[str]:
    """All cells that were ever done, as LABEL=FOLDER: the fewest hosts first, the largest caps first, methods in their order."""
    order = list(METHODS)
    found = []
    for folder in RECORDS.glob("*-*hosts-*"):
        method, hosts, cap = folder.name.rsplit("-", 2)
        if method in order and done(folder):
            found.append((int(hosts.removesuffix("hosts")), -bits_per_second(cap), order.index(method), f"{method}={folder}"))
    return [words for *_, words in sorted(found)]


if __name__ == "__main__":
    with spoken_errors():
        sys.exit(main(sys.argv[1:]))
