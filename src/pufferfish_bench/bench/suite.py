"""Measures the subjects of the benchmark and keeps the results: a JSON file for each. Imports torch only to measure."""

import inspect
import multiprocessing
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pufferfish_bench.base.console import about, say

SUBJECTS = {  # in the order of the table
    "nets": "steps of ResNet-18, VGG-19, ResNet-50 and WideResNet-50-2, hybrid against vanilla and a textbook net",
    "lstm": "the low-rank LSTM layer against torch's fused one",
    "transformer": "a step of the Transformer, hybrid against vanilla",
    "epoch": "an epoch through the trainer against a bare loop",
    "cifar": "batches of CIFAR-10 against torchvision's transforms in a DataLoader",
    "loader": "the ImageNet loader against torchvision's ImageFolder in a DataLoader",
    "svd": "the switch to low-rank layers against torch's SVD",
    "compression": "PowerSGD against torch's hook, Signum against a sum of int8",
    "flat": "the flat engine against a plain backward pass",
    "startup": "the command line against importing Hydra",
    "memory": "peak memory of a run after the switch against a vanilla run",
    "growth": "how the cost of a step grows with width and batch",
}


def measure(subject: str, out: Path, *, quick: bool, rounds: int | None = None) -> Path:
    """Measure one subject in this process and write its file. `quick` takes its smaller sizes."""
    from pufferfish_bench.bench import interleaved

    module: Any = import_module(f"pufferfish_bench.bench.{subject}")
    given = (module.QUICK if quick else {}) | ({} if rounds is None else {"rounds": rounds})
    defaults = {name: each.default for name, each in inspect.signature(module.measure).parameters.items()}
    start = time.perf_counter()
    rows, figures = module.measure(**given)
    path = out / f"{subject}.json"
    content = {
        "subject": subject,
        "quick": quick,
        "settings": defaults | given,
        "took_seconds": time.perf_counter() - start,
        "rows": [row.as_json() for row in rows],
        "figures": figures,
    }
    interleaved.write(path, content)
    return path


def measure_in_new_process(subject: str, out: Path, *, quick: bool) -> None:
    multiprocessing.set_start_method(None, force=True)  # else the workers of a DataLoader would be spawned like this process
    measure(subject, out, quick=quick)


def measure_all(out: Path, *, quick: bool, subjects: Sequence[str] = tuple(SUBJECTS)) -> list[str]:
    """Measure each subject in a new process, whose thread counts and memory settings end with it. Returns those that failed.

    The file of a subject that fails is missing afterwards: an old result must not look like a new one.
    """
    spawn = multiprocessing.get_context("spawn")
    begin, failed = time.perf_counter(), []
    for number, subject in enumerate(subjects, start=1):
        say(f"[{number}/{len(subjects)}] {subject}: {SUBJECTS[subject]}", style="bold")
        (out / f"{subject}.json").unlink(missing_ok=True)
        process = spawn.Process(target=measure_in_new_process, args=(subject, out), kwargs={"quick": quick})
        process.start()
        process.join()
        if process.exitcode:
            failed.append(subject)
            say(f"{subject} failed with exit code {process.exitcode}")
    say(f"measured in {about(time.perf_counter() - begin)}")
    return failed
