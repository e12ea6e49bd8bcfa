"""Writes the model of a finished run to a file, after the file has proved to compute the same."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.config.restore import restored_model
from pufferfish_bench.export import container
from pufferfish_bench.export.compare import BATCHES, Model, largest, largest_difference, outputs
from pufferfish_bench.export.graph import SAMPLE, Graph, runtime, write_graph
from pufferfish_bench.export.inputs import Inputs, inputs_of
from pufferfish_bench.export.restore import rebuild
from pufferfish_bench.methods.lth import MASK
from pufferfish_bench.records import reader
from pufferfish_bench.records.files import replacing

TOLERATED = 1e-3  # largest difference of outputs to accept, as a fraction of the largest output


@dataclass(frozen=True)
class Source:
    """The model of a run in both forms, with inputs for it."""

    factored: nn.Module  # as the run left it
    merged: nn.Module
    inputs: Inputs
    record: Mapping[str, Any]
    metadata: Mapping[str, Any]  # without the form

    @classmethod
    def read(cls, directory: Path, record: Mapping[str, Any], shape: Sequence[int] | None, allowed: Collection[str]) -> "Source":
        inputs = inputs_of(directory, record, shape)
        model = restored_model(directory, record, allowed)
        with reader.asking(directory):
            metadata = metadata_of(record)
        return cls(model, lowrank.merge(deepcopy(model)).eval(), inputs, record, metadata)

    @property
    def is_factored(self) -> bool:
        """Whether the model has low-rank layers."""
        return any(isinstance(layer, lowrank.FactoredLayer) for layer in self.factored.modules())

    def form(self, merge: bool) -> nn.Module:
        return self.merged if merge else self.factored

    def difference(self, model: Model, sizes: Sequence[int] = BATCHES) -> tuple[float, float]:
        """The largest difference between the outputs of `model` and those of the run's model, and the largest output."""
        differences, heights = [0.0], [0.0]
        for size in sizes:
            try:
                batch = self.inputs.batch(self.factored, size)
                expected = outputs(self.factored, batch)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                why = " ".join(str(error).split())[:150]
                raise InputError(
                    f"the model does not accept a batch of {size} ({self.inputs.unit}): {why}; give the shape of one "
                    "input, as in --input 3x32x32"
                ) from error
            differences.append(largest_difference(outputs(model, batch), expected))
            heights.append(largest(expected))
        return max(differences, key=lambda value: (value != value, value)), max(heights)  # NaN counts as largest


def changed_layers(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the surgeries of a run did to each layer."""
    return {name: found for done in record.get("operations", ()) for name, found in done.get("layers", {}).items()}


def metadata_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What an exported file says about its model and its run."""
    summary, settings = record["summary"], record["settings"]
    layers = changed_layers(record)
    return {
        "ranks": {name: found["rank"] for name, found in layers.items() if "rank" in found},
        "channels": {name: [found["inputs"], found["outputs"]] for name, found in layers.items() if "inputs" in found},
        "model": settings["model"]["net"],
        "run": {"name": settings["name"], **{key: record.get(key) for key in ("commit", "dirty", "finished")}},
        "metric": {
            "name": summary["metric"],
            "value": summary[summary["metric"]],
            "higher_is_better": summary["higher_is_better"],
        },
    }


def write_tensors(path: Path, source: Source, *, merge: bool, allowed: Collection[str]) -> tuple[float, float]:
    """Write the safetensors file, unless the model rebuilt from it differs from the run's.

    Returns the largest difference between the outputs of both, and the largest output.
    """
    form = container.MERGED if merge else container.FACTORED
    masks = {f"{name}.{MASK}" for name, found in changed_layers(source.record).items() if "kept" in found}
    state = source.form(merge).state_dict()
    kept = {name: value for name, value in state.items() if name not in masks}  # masked weights are zero
    with replacing(path) as beside:
        container.save(beside, kept, {**source.metadata, "form": form})
        found = source.difference(rebuild(beside, allowed))
        check(path, *found)
    return found


def write_onnx(path: Path, source: Source, *, merge: bool) -> tuple[Graph, float]:
    """Write the ONNX file, unless it computes something else in onnxruntime; returns also the largest difference."""
    with replacing(path) as beside:
        graph = write_graph(beside, source.form(merge), source.inputs, container.texts({**source.metadata, "aliases": {}}))
        found = source.difference(runtime(beside), BATCHES if graph.free_batch else (SAMPLE,))
        check(path, *found)
    return graph, found[0]


def check(path: Path, difference: float, height: float) -> None:
    if not difference <= TOLERATED * height:
        raise InputError(
            f"{path} was not written: its outputs differ from those of the run's model by {difference:.2g}, and the largest "
            f"output is {height:.2g}"
        )
