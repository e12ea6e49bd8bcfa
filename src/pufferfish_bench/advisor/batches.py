"""A batch for measuring a step, without a data set: random inputs of the shapes that a run has, and the loss of the task.

What a step costs does not depend on the values. Reading data is not measured: a run reads ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Task
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.training.memory_format import is_channels_last

Loss = Callable[[nn.Module], Tensor]


def of_task(task: Task) -> Loss:
    """The loss of the first batch of a data set."""
    with closing(task.batches(0, 0)) as batches:
        batch = copied(next(batches))
    return lambda model: task.loss(model, batch)


def copied(thing: Any) -> Any:
    """A copy of a batch, whose memory the data set may reuse."""
    if isinstance(thing, Tensor):
        return thing.clone()
    return type(thing)(map(copied, thing)) if isinstance(thing, tuple | list) else thing


def of_sample(
    sample: Sequence[Tensor], facts: Mapping[str, Any], *, batch_size: int, length: int, model: nn.Module, device: torch.device
) -> Loss:
    """The loss of a random batch of the shape of `sample`, one input of the model. `facts` are the settings of the data set."""
    kind = (facts.get("input") or {}).get("kind")
    if kind == "text":
        words = integers((int(facts["segment"]), batch_size), facts, device)
        following = integers((int(facts["segment"]), batch_size), facts, device)
        return lambda model: model(words, None, following)[0].mean()
    if kind == "sentence pairs":
        source, target = (integers((batch_size, length), facts, device) for _ in range(2))
        return lambda model: cross_entropy(model(source, target[:, :-1]), target[:, 1:])
    if kind == "images" and "classes" in facts:
        Images(int(facts["classes"])).check_output(model, sample)
    inputs = [repeated(tensor, batch_size, model, device) for tensor in sample]
    with torch.no_grad():
        logits = first_tensor(model(*inputs))
    if logits.ndim < 2:
        raise InputError(
            f"the model returns {tuple(logits.shape)} for a batch of {batch_size}: logits (batch, ..., classes) are expected; "
            "use batch=task for a model with another loss"
        )
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], device=device)
    return lambda model: cross_entropy(first_tensor(model(*inputs)), labels)


class Images(ImageClassification):
    """What the task of a run needs to check the output of a model."""

    def __init__(self, classes: int):
        self.classes = classes


def integers(shape: tuple[int, int], facts: Mapping[str, Any], device: torch.device) -> Tensor:
    """Random words, without the special ones at the beginning of a vocabulary (padding, for example)."""
    vocabulary = int(facts["vocabulary"])
    return torch.randint(min(4, vocabulary - 1), vocabulary, shape, device=device)


def repeated(tensor: Tensor, count: int, model: nn.Module, device: torch.device) -> Tensor:
    """A sample input of the model as a batch: random numbers of its shape; integers are repeated as they are."""
    shape = (count, *tensor.shape[1:])
    if not tensor.is_floating_point():
        return tensor[:1].expand(shape).contiguous().to(device)
    batch = torch.randn(shape, dtype=tensor.dtype, device=device)
    return batch.contiguous(memory_format=torch.channels_last) if batch.ndim == 4 and is_channels_last(model) else batch


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def first_tensor(output: Any) -> Tensor:
    """The output of a model, or the first tensor of a tuple, a mapping or a Hugging Face output."""
    while not isinstance(output, Tensor):
        parts = list(output.values()) if isinstance(output, Mapping) else list(output)
        output = parts[0]
    return output
