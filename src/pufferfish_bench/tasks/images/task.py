"""Image classification, independent of where the images come from: the loss of a batch and the evaluation of a model."""

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.core import Task
from pufferfish_bench.distributed.world import World
from pufferfish_bench.lowrank import one_pass
from pufferfish_bench.tasks import sharding
from pufferfish_bench.tasks.label_smoothing import torch_label_smoothing
from pufferfish_bench.training.memory_format import is_channels_last

Batch = tuple[Tensor, Tensor]  # images (count, 3, height, width) of uint8 and int64 labels, on the device


class Source:
    """Provides batches of labelled images. The source augments them; the task normalises them."""

    batch_size: int

    def steps(self) -> int:
        """Number of batches in an epoch."""
        raise NotImplementedError

    def count(self) -> int:
        """Number of images in all batches of an epoch. All batches but the last are full."""
        raise NotImplementedError

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        """The batches of an epoch, starting with batch `start`: a pure function of the source, the epoch and the batch number.

        A batch may be overwritten when the next one is requested.
        """
        raise NotImplementedError


class ImageClassification(Task):
    """Image classification, evaluated by top-1 accuracy and by top-k accuracy for each k in `top`.

    Label smoothing applies to training only: the test loss is the plain cross-entropy.
    """

    metric = "test_accuracy"
    higher_is_better = True

    def __init__(
        self,
        *,
        train: Source,
        test: Source,
        classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        label_smoothing: float,
        top: Sequence[int] = (),
        world: World,
    ):
        self.train = train
        self.test = test
        self.classes = classes
        self.smoothing = torch_label_smoothing(label_smoothing, classes)
        self.top = [k for k in top if k <= classes]
        self.world = world
        # (pixel - mean) / std for pixels in 0..255, as one multiplication and one addition
        self.scale = (1 / (255 * torch.tensor(std))).view(1, -1, 1, 1).to(world.device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).view(1, -1, 1, 1).to(world.device)
        # correct predictions and images of the training batches of this epoch, summed on the device so that no step waits for it
        self.fitted = torch.zeros(2, dtype=torch.float64, device=world.device)
        self.channels_last = False
        self.normalised = self.row_scale = self.row_shift = torch.empty(0)

    def prepare(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Provide batches in the memory format of the model, and check the size of the last batch."""
        self.channels_last = is_channels_last(model)
        self.normalised = torch.empty(0)
        self.check_output(model, sample)
        self.check_last_batch(model, sample)

    def check_output(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Refuse a model whose output, in evaluation or in training, is not a number for each class. The model is not changed."""
        modes = {module: module.training for module in model.modules()}
        try:
            with torch.no_grad(), one_pass.unchanged(model):
                self.check_logits(model.eval()(*sample), sample)
                pair = [torch.cat([tensor, tensor]) for tensor in sample]  # in training, BatchNorm fails on one image
                self.check_logits(output_in_training(model, pair), pair, " in training")
        finally:
            for module, training in modes.items():
                module.training = training

    def check_logits(self, output: Any, sample: Sequence[Tensor], when: str = "") -> None:
        wanted = (len(sample[0]), self.classes)
        if not isinstance(output, Tensor):
            raise InputError(
                f"the model returns {type(output).__name__} for a batch of images{when}; a tensor {wanted} is expected"
                + "; switch its auxiliary outputs off, for example with model.net.aux_logits=false" * bool(when)
            )
        if output.shape != wanted:
            raise InputError(
                f"the model returns a tensor {tuple(output.shape)}, but dataset.classes={self.classes} needs {wanted}: give its "
                f"constructor the number of classes, for example model.net.num_classes={self.classes}"
            )

    def check_last_batch(self, model: nn.Module, sample: Sequence[Tensor]) -> None:
        """Refuse batch sizes that leave a last batch of one image if BatchNorm in this model fails on it."""
        images, batch_size = self.train.count(), self.train.batch_size
        if not leaves_single_image(images, batch_size):
            return
        try:
            with torch.no_grad():
                copy.deepcopy(model).train()(*sample)
        except ValueError as error:
            if "more than 1" not in str(error):  # torch raises no specific exception class for this
                raise
            nearest = sorted(range(2, images + 1), key=lambda size: abs(size - batch_size))
            better = [f"batch_size={size}" for size in nearest if not leaves_single_image(images, size)]
            workers = f" of each of {self.world.size} workers" if self.world.size > 1 else ""
            raise InputError(
                f"batch_size={batch_size} leaves a batch of one image ({images:,} training images{workers}), on which BatchNorm "
                f"in this model fails; use {better[0] if better else 'more images or fewer workers'}"
            ) from None

    def steps(self, epoch: int) -> int:
        return self.train.steps()

    def batches(self, epoch: int, start: int) -> Generator[Batch]:
        if start == 0:
            self.fitted.zero_()
        with closing(self.train.batches(epoch, start)) as batches:
            for images, labels in batches:
                yield self.normalise(images), labels

    def loss(self, model: Callable[..., Tensor], batch: Batch) -> Tensor:
        images, labels = batch
        logits = model(images)
        with torch.no_grad():
            self.fitted[0] += (logits.argmax(1) == labels).sum()
            self.fitted[1] += len(labels)
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)

    def count(self, batch: Batch) -> int:
        return len(batch[1])

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Parts of two images or more: in training, BatchNorm fails on one."""
        images, labels = batch
        return [(images[part], labels[part]) for part in sharding.parts_of(len(labels), min(parts, len(labels) // 2))]

    def training_figures(self, mean_loss: float) -> dict[str, float]:
        """The accuracy on the training batches of this epoch, augmented as they were, each before the step that it led to."""
        sums = self.fitted.clone()
        self.world.allreduce(sums)
        correct, images = self.world.on_host(sums).tolist()
        return {"train_accuracy": 100 * correct / images} if images else {}

    def state_dict(self) -> dict[str, Any]:
        return {"fitted": self.world.on_host(self.fitted).tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fitted.copy_(torch.tensor(state["fitted"], dtype=torch.float64))

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        # sums of: the loss, the images, the correct top-1 predictions, and the correct top-k predictions for each k
        sums = torch.zeros(3 + len(self.top), dtype=torch.float64, device=self.world.device)
        with closing(self.test.batches(0, 0)) as batches:
            for images, labels in batches:
                logits = model(self.normalise(images)).float()
                sums[0] += F.cross_entropy(logits, labels, reduction="sum")
                sums[1] += len(labels)
                sums[2] += (logits.argmax(1) == labels).sum()
                for place, k in enumerate(self.top, start=3):
                    sums[place] += (logits.topk(k).indices == labels[:, None]).sum()
        self.world.allreduce(sums)
        loss, count, *correct = self.world.on_host(sums).tolist()
        accuracy, *others = (100 * number / count for number in correct)
        return {"test_loss": loss / count, "test_accuracy": accuracy} | {
            f"test_top{k}": share for k, share in zip(self.top, others, strict=True)
        }

    def normalise(self, images: Tensor) -> Tensor:
        """Normalised float pixels, in a buffer that the next batch reuses: allocation would cost more than arithmetic."""
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        if self.normalised.shape[1:] != images.shape[1:] or len(self.normalised) < len(images):
            self.normalised = torch.empty(images.shape, device=images.device, memory_format=memory_format)
            self.row_scale, self.row_shift = (each.flatten().repeat(images.shape[3]) for each in (self.scale, self.shift))
        # reordered as bytes, if at all: four times fewer than the floats
        pixels = self.normalised[: len(images)].copy_(images.contiguous(memory_format=memory_format))
        if self.channels_last:  # row by row: three channels at a time would be slow
            rows = pixels.permute(0, 2, 3, 1).view(-1, 3 * images.shape[3])
            rows.mul_(self.row_scale).add_(self.row_shift)
            return pixels
        return pixels.mul_(self.scale).add_(self.shift)


def output_in_training(model: nn.Module, sample: Sequence[Tensor]) -> Any:
    try:
        return model.train()(*sample)
    except InputError:
        raise
    except Exception as error:  # the code of a model may raise anything
        shapes = " and ".join("x".join(map(str, tensor.shape)) for tensor in sample)
        raise InputError(f"the model fails in training on an input of {shapes} ({one_pass.in_words(error)})") from error


def leaves_single_image(images: int, batch_size: int) -> bool:
    """Whether splitting `images` into batches gives a batch of one image."""
    return batch_size == 1 or images % batch_size == 1


def check_batch_sizes(batch_size: int, test_batch_size: int) -> None:
    for name, size in (("batch_size", batch_size), ("dataset.test_batch_size", test_batch_size)):
        if size < 1:
            raise InputError(f"{name}={size} must be at least 1")
