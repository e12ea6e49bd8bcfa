"""A model as an ONNX graph, and the graph's outputs in onnxruntime. Needs the packages of the extra [onnx]."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pufferfish_bench import lowrank
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.base.printable import printable
from pufferfish_bench.export.compare import outputs
from pufferfish_bench.export.inputs import Inputs
from pufferfish_bench.lowrank.attention import LowRankAttention
from pufferfish_bench.lowrank.factorise import factored_layers

SAMPLE = 2  # inputs in the batch that is traced; torch writes a batch of 1 into the graph
KEPT = (lowrank.LowRank, LowRankAttention)  # low-rank layers that are factored in the graph


@dataclass(frozen=True)
class Graph:
    """An ONNX file."""

    free_batch: bool  # takes batches of any size, not only of SAMPLE inputs
    merged: list[str]  # low-rank layers that are dense in it


def write_graph(path: Path, model: nn.Module, inputs: Inputs, metadata: Mapping[str, str]) -> Graph:
    """Write the graph of a model in evaluation.

    Low-rank linear layers, convolutions and attention layers stay factored. Others (LSTM) are merged: as a loop over time,
    they would be unrolled, which takes minutes and makes a large file.
    """
    model, merged = merge_others(model)
    batch = inputs.batch(model, SAMPLE)
    names, count = inputs.names(batch), len(outputs(model, batch))
    further = [f"next_{name}" for name in names[1:]] if count == len(names) else [f"output_{n}" for n in range(1, count)]
    options: dict[str, Any] = {"input_names": names, "output_names": ["logits", *further], "dynamo": True, "verbose": False}
    with quiet(), torch.no_grad():
        program, free = None, inputs.free_sizes(batch)
        for sizes in (free, None):
            try:
                program = torch.onnx.export(model, batch, dynamic_shapes=sizes, **options)
                break
            except Exception as error:  # torch documents no exceptions of its exporter
                reason = error
        if program is None:
            raise InputError(f"torch cannot export this model to ONNX ({first_line(reason)}); leave --onnx out") from reason
        program.model.metadata_props.update(metadata)
        program.save(str(path))
    return Graph(free_batch=sizes is not None, merged=merged)


def merge_others(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy of a model in which only low-rank layers of the kinds in KEPT are factored, and the names of the others."""
    model = deepcopy(model)
    others = {name: layer for name, layer in factored_layers(model) if not isinstance(layer, KEPT)}
    for name, layer in others.items():
        model = lowrank.replace(model, name, lowrank.merge_layer(layer))
    return model, list(others)


def first_line(error: BaseException) -> str:
    """What the first of a chain of errors says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0][:150])


def runtime(path: Path) -> Callable[..., list[Tensor]]:
    """A function that computes the outputs of an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*batch: Any) -> list[Tensor]:
        tensors = (tensor.numpy() for tensor in pytree.tree_leaves(batch))
        try:
            found = session.run(None, dict(zip(names, tensors, strict=True)))
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise InputError(f"onnxruntime cannot run the exported graph: {first_line(error)}") from error
        return [torch.from_numpy(array) for array in found]

    return run


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and messages of torch's exporter about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
