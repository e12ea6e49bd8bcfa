"""The command pufferfish-export: write the model of a finished run to a file of its own."""

import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pufferfish_bench.base.console import say
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.base.suggestions import not_known
from pufferfish_bench.cli.messages import run_with_words
from pufferfish_bench.config.restore import vet
from pufferfish_bench.config.samples import recorded_input
from pufferfish_bench.records import reader

if TYPE_CHECKING:
    from pufferfish_bench.export.write import Source

NEEDED = ("settings.name", "settings.model", "settings.method", "settings.dataset", "settings.epochs", "summary.metric")
ONNX = ("onnx", "onnxscript", "onnxruntime")
FLAGS = ("--merge", "--onnx", "--force")


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    run: Path
    out: Path
    merge: bool
    onnx: bool
    force: bool
    shape: tuple[int, ...] | None
    allowed: list[str]

    @property
    def graph(self) -> Path:
        return self.out.with_suffix(".onnx")


def arguments(words: list[str]) -> Request:
    """The request that the words of a command line make."""
    values: dict[str, list[str]] = {"--allow": [], "--input": []}
    others, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in values:
            values[option].append(value if equals else next(rest, ""))
        else:
            others.append(word)
    runs = [word.removeprefix("run=") for word in others if word.startswith("run=")]
    outs = [word for word in others if not word.startswith(("run=", "-"))]
    for word in others:
        if word.startswith("-") and word not in FLAGS:
            raise not_known(f"option {word}", word, (*FLAGS, *values))
        if "=" in word and not word.startswith("run="):
            raise InputError(f"there is no setting {word}; give run=DIR, options, and a file to write")
    if len(runs) != 1 or not runs[0]:
        meant = f"; did you mean run={outs[0]}?" if not runs and len(outs) > 1 else f"; got {len(runs)}"
        raise InputError(f"give one run=DIR, the directory of a finished run{meant}")
    if len(outs) != 1:
        raise InputError(f"give one file to write, as in out.safetensors; got {len(outs)}")
    if not all(values["--allow"]):
        raise InputError("--allow needs the name of a model or method, as in --allow my_net.Net")
    merge, onnx, force = (flag in others for flag in FLAGS)
    return Request(Path(runs[0]), Path(outs[0]), merge, onnx, force, shape_of(values["--input"]), values["--allow"])


def shape_of(given: list[str]) -> tuple[int, ...] | None:
    if not given:
        return None
    if len(given) > 1 or not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", given[0]):
        raise InputError(f"--input {' '.join(given)}: give the shape of one input without the batch, as in 3x32x32")
    return tuple(map(int, given[0].split("x")))


def check_files(request: Request) -> None:
    """Refuse what cannot be written."""
    if request.out.suffix != ".safetensors":
        raise InputError(f"{request.out} must end with .safetensors")
    if not request.out.parent.is_dir():
        raise InputError(f"there is no folder {request.out.parent} to write {request.out.name} to; create it first")
    for path in (request.out, *([request.graph] if request.onnx else [])):
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file")
        if path.exists() and not request.force:
            raise InputError(f"{path} exists; give --force to replace it, or another name")
    missing = [name for name in ONNX if request.onnx and importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"--onnx needs {', '.join(missing)}: pip install 'pufferfish-bench[onnx]'")


def check_run(request: Request) -> dict[str, Any]:
    """The record of the run; refuses a run that cannot be exported."""
    record = reader.read_run(request.run)
    if not reader.is_finished(record):
        raise InputError(f"the run in {request.run} is not finished; run its command again to resume it")
    reader.require(record, NEEDED, str(request.run))
    vet(record, request.allowed)
    if request.shape is None and recorded_input(record["settings"]) is None:
        name = printable(str(record["settings"]["dataset"].get("_target_")))
        raise InputError(
            f"the data set of the run ({name}) is not part of this package; give the shape of one input, as in --input 3x32x32"
        )
    if not any((request.run / "checkpoints").glob("*.pt")):
        raise InputError(f"{request.run} has no checkpoint, so its model cannot be restored; run its command again")
    return record


def main(words: list[str]) -> None:
    request = arguments(words)
    check_files(request)
    record = check_run(request)
    if request.allowed:
        sys.path.append(os.getcwd())  # for the user's own model; last, so that it cannot shadow installed modules
    from pufferfish_bench.export import write

    source = write.Source.read(request.run, record, request.shape, request.allowed)
    difference, height = write.write_tensors(request.out, source, merge=request.merge, allowed=request.allowed)
    metric, ranks = source.metadata["metric"], source.metadata["ranks"]
    form = ("merged" if request.merge else "factored") if source.is_factored else "dense"
    size = sum(parameter.numel() for parameter in source.form(request.merge).parameters())
    say(f"run:      {record['settings']['name']}, {metric['name']} {metric['value']:.4g}")
    say(f"file:     {request.out}, {form}, {size:,} parameters, {request.out.stat().st_size / 1e6:,.2f} MB")
    spread = f", of rank {min(ranks.values())} to {max(ranks.values())}" if ranks else ""
    say(f"ranks:    {len(ranks) or 'no'} low-rank layers{spread}")
    say(f"reloaded: largest difference to the run's model {difference:.3g}; the largest output is {height:.3g}")
    if source.is_factored:
        say(f"merged:   largest difference between factored and merged {source.difference(source.merged)[0]:.3g}")
    if request.onnx:
        show_onnx(request, source)
    show_latencies(source)


def show_onnx(request: Request, source: "Source") -> None:
    from pufferfish_bench.export import graph, write

    written, difference = write.write_onnx(request.graph, source, merge=request.merge)
    batch = "any batch size" if written.free_batch else f"batches of {graph.SAMPLE} only, as torch cannot leave the size free"
    say(f"onnx:     {request.graph}, {batch}; largest difference to the run's model in onnxruntime {difference:.3g}")
    if written.merged:
        say(f"          merged in this file, as ONNX has no low-rank form of them: {', '.join(written.merged)}")


def show_latencies(source: "Source") -> None:
    import torch

    from pufferfish_bench.export import compare
    from pufferfish_bench.records.environment import cpu_name

    models = {"factored": source.factored, "merged": source.merged} if source.is_factored else {"dense": source.factored}
    threads = torch.get_num_threads()
    device = f"the CPU ({cpu_name()}), {threads} thread{'s' * (threads > 1)}"
    say(f"latency:  medians over rounds, of times in ms and of their ratio; in turns, on {device}")
    for size in compare.BATCHES:
        found = compare.latency(models, source.inputs.batch(source.factored, size))
        times = ", ".join(f"{name} {1000 * seconds:.3g}" for name, seconds in found.seconds.items())
        ratio = f", factored / merged {found.ratio:.2f}" if found.ratio else ""
        say(f"          batch {size} ({source.inputs.unit}): {times}{ratio}; {found.rounds} rounds")


def run() -> None:
    """The command pufferfish-export."""
    run_with_words("export", main)


if __name__ == "__main__":
    run()
