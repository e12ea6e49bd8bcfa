"""Images in tensors: vectorised against plain augmentation, and epochs that can be resumed at any step."""

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.distributed.world import World, single_process
from pufferfish_bench.tasks.images.task import ImageClassification
from pufferfish_bench.tasks.images.tensor_images import PADDING, PADDING_MODES, TensorImages, augment, task_from_tensors
from pufferfish_bench.training import memory_format
from tests.support.commands import Command
from tests.support.nets import TinyNet, tiny_task


def augment_one(image: Tensor, row: int, column: int, flip: bool, padding: str) -> Tensor:
    """Pad by reflection or with zeros, crop, flip: one image at a time."""
    height, width = image.shape[1:]
    padded = F.pad(image[None].float(), [PADDING] * 4, mode={"reflect": "reflect", "zero": "constant"}[padding])[0].byte()
    crop = padded[:, row : row + height, column : column + width]
    return crop.flip(2) if flip else crop


@given(
    st.lists(st.tuples(st.integers(0, 2 * PADDING), st.integers(0, 2 * PADDING), st.booleans()), min_size=1, max_size=6),
    st.integers(5, 9),
    st.integers(5, 9),
    st.sampled_from(PADDING_MODES),
)
def test_the_vectorised_augmentation_is_pad_crop_flip_of_each_image(moves: list, height: int, width: int, padding: str):
    images = torch.randint(256, (len(moves) + 3, 3, height, width), dtype=torch.uint8)
    chosen = torch.randperm(len(images))[: len(moves)]
    rows, columns, flips = (torch.tensor(move) for move in zip(*moves, strict=True))
    expected = [augment_one(image, *move, padding) for image, move in zip(images[chosen], moves, strict=True)]
    assert torch.equal(augment(images, chosen, rows, columns, flips, padding=padding), torch.stack(expected))


@given(start=st.integers(0, 7), epoch=st.integers(0, 300))
def test_an_epoch_resumed_in_the_middle_gives_the_remaining_batches(start: int, epoch: int):
    task = tiny_task()
    whole, rest = ([(images.clone(), labels) for images, labels in task.batches(epoch, first)] for first in (0, start))
    assert len(whole) == task.steps(epoch)
    assert len(rest) == len(whole) - start
    for (images, labels), (same_images, same_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)


def test_every_image_is_seen_once_per_epoch_and_the_order_depends_on_epoch_and_seed():
    def order(seed: int, epoch: int) -> list[int]:
        task = tiny_task(seed=seed)
        task.train.labels = torch.arange(50)  # each image has its index as label
        return torch.cat([labels for _, labels in task.batches(epoch, 0)]).tolist()

    orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(numbers) == list(range(50)) for numbers in orders)
    assert len({tuple(numbers) for numbers in orders}) == 4


class Pooled(nn.Module):
    """BatchNorm over maps of 1x1 or, if `wide`, of 8x8."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.shrink = nn.Identity() if wide else nn.AvgPool2d(8)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.shrink(images)).mean((2, 3))


def task_of_rank(images: int, batch_size: int, rank: int, size: int) -> ImageClassification:
    world = World(rank=rank, size=size, device=torch.device("cpu"))
    data = (torch.zeros(images, 3, 8, 8, dtype=torch.uint8), torch.zeros(images, dtype=torch.int64))
    return task_from_tensors(
        train=data, test=data, classes=3, mean=(0.5,) * 3, std=(0.25,) * 3, label_smoothing=0.0, batch_size=batch_size,
        test_batch_size=6, seed=1, world=world,
    )  # fmt: skip


@given(images=st.integers(1, 60), batch_size=st.integers(1, 70), size=st.integers(1, 3), wide=st.booleans())
def test_a_batch_of_one_image_is_refused_before_training_exactly_where_training_would_fail(
    images: int, batch_size: int, size: int, wide: bool
):
    model, sample = Pooled(wide), [torch.zeros(1, 3, 8, 8)]
    size = min(size, images)
    for rank in range(size):
        task = task_of_rank(images, batch_size, rank, size)
        try:
            for batch in task.batches(0, 0):
                task.loss(model, batch)
        except ValueError:
            with pytest.raises(InputError, match=f"batch_size={batch_size} leaves a batch of one image") as error:
                task.prepare(model, sample)
            better = re.search(r"use batch_size=(\d+)$", str(error.value))
            if better:
                task_of_rank(images, int(better[1]), rank, size).prepare(model, sample)
            else:
                assert images // size == 1
                assert str(error.value).endswith("use more images or fewer workers")
        else:
            task.prepare(model, sample)


def test_the_check_leaves_the_model_as_it_was():
    model = Pooled(wide=True)
    model.shrink.eval()  # a part of its own mode
    before = copy.deepcopy(model.state_dict())
    task_of_rank(9, 8, 0, 1).prepare(model, [torch.ones(1, 3, 8, 8)])
    assert (model.training, model.norm.training, model.shrink.training) == (True, True, False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_run_whose_last_batch_has_one_image_is_refused_before_it_writes_anything(invoke: Command, tmp_path: Path):
    settings = (
        "model=resnet50",
        "profile=smoke",
        "dataset.train_images=65",
        "dataset.test_images=10",
        "epochs=1",
        "schedule.learning_rate=1e-3",
    )
    refused = invoke(*settings, "batch_size=32", "run_dir=run")
    assert refused.returncode == 2
    assert "error: batch_size=32 leaves a batch of one image (65 training images), on which BatchNorm" in refused.stderr
    assert refused.stderr.endswith("; use batch_size=31\n")
    assert list(tmp_path.iterdir()) == []
    assert invoke(*settings, "batch_size=31", "run_dir=run").returncode == 0


def test_every_crop_position_and_both_mirror_images_occur():
    task = tiny_task(images=4000, batch_size=4000)
    task.train.images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(4000, 3, 16, 16).contiguous()
    images, _ = next(task.batches(0, 0))
    assert len(images.flatten(1).unique(dim=0)) == 2 * (2 * PADDING + 1) ** 2


def test_batches_do_not_change_global_random_state():
    before = torch.get_rng_state()
    list(tiny_task().batches(0, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_normalisation_is_pixel_over_255_minus_mean_over_std():
    task = tiny_task()
    pixels = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(task.normalise(pixels), (pixels / 255 - 0.5) / 0.25)


def test_evaluation_is_the_mean_over_all_images_whatever_the_batch_size():
    task, model = tiny_task(), TinyNet().eval()
    with torch.no_grad():
        logits = model(task.normalise(task.test.images))
        figures = task.evaluate(model)
    assert figures["test_loss"] == pytest.approx(float(F.cross_entropy(logits, task.test.labels)), rel=1e-5)
    assert figures["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == task.test.labels).float().mean()))


def test_training_accuracy_is_that_of_the_batches_of_an_epoch_also_across_a_resume():
    task, model = tiny_task(), TinyNet().eval()
    assert task.training_figures(0.0) == {}  # nothing was trained
    for epoch in (0, 1):  # each epoch on its own
        batches = [(images.clone(), labels) for images, labels in task.batches(epoch, 0)]
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
        for batch in task.batches(epoch, 0):
            task.loss(model, batch)
        expected = {"train_accuracy": pytest.approx(100 * right / sum(len(labels) for _, labels in batches))}
        assert task.training_figures(0.0) == expected
    first, second = tiny_task(), tiny_task()
    for batch in list(zip(range(2), first.batches(1, 0), strict=False)):
        first.loss(model, batch[1])
    second.load_state_dict(first.state_dict())
    stopped = second.state_dict()
    assert stopped["fitted"][1] == 2 * len(batches[0][1])
    for batch in second.batches(1, 2):
        second.loss(model, batch)
    assert second.fitted[1] == task.fitted[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 3}, "classes=3"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"padding": "mirror"}, "dataset.padding=mirror is not known; allowed: reflect, zero"),
        ({"label_smoothing": 0.76}, "label_smoothing=0.76"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(changes: dict, words: str):
    pixels, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4)
    fitting = {"classes": 4, "batch_size": 2, "test_batch_size": 2, "mean": (0.0,) * 3, "std": (1.0,) * 3, "seed": 1}
    fitting |= {"label_smoothing": 0.0}
    with pytest.raises(InputError, match=words):
        task_from_tensors(train=(pixels, labels), test=(pixels, labels), world=single_process(), **fitting | changes)


def smoothed_by_the_paper(logits: Tensor, labels: Tensor, share: float) -> Tensor:
    """1 - share for the right class, the share spread over the others."""
    classes = logits.shape[1]
    target = torch.full_like(logits, share / (classes - 1)).scatter(1, labels[:, None], 1 - share)
    return -(target * logits.log_softmax(1)).sum(1).mean()


@given(classes=st.integers(2, 12), share=st.floats(0.01, 0.5))  # two classes allow no more
def test_label_smoothing_gives_its_share_to_the_wrong_classes(classes: int, share: float):
    logits, labels = torch.randn(7, classes, dtype=torch.double), torch.randint(classes, (7,))
    task = lookup_task(logits, labels, label_smoothing=share)
    torch.testing.assert_close(task.loss(lambda _: logits, (None, labels)), smoothed_by_the_paper(logits, labels, share))


def test_for_1000_classes_the_value_given_to_torch_is_the_authors():
    assert lookup_task(torch.zeros(1, 1000), torch.zeros(1, dtype=torch.long), label_smoothing=0.1).smoothing == pytest.approx(
        0.1001001
    )


@given(classes=st.integers(6, 12))
def test_top_5_accuracy_counts_images_whose_class_is_among_the_five_highest(classes: int):
    logits, labels = torch.randn(9, classes), torch.randint(classes, (9,))
    among = [int(label) in sorted(range(classes), key=lambda k: -row[k])[:5] for row, label in zip(logits, labels, strict=True)]
    figures = lookup_task(logits, labels, top=(5,)).evaluate(lambda images: logits[images[:, 0, 0, 0].long()])
    assert figures["test_top5"] == pytest.approx(100 * sum(among) / 9)
    assert figures["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == labels).float().mean()))


def lookup_task(
    logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, top: tuple[int, ...] = ()
) -> ImageClassification:
    """A task whose images encode their index, in batches of two, for a model that looks up its logits."""
    numbers = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 1, 1)
    source = TensorImages(numbers, labels, batch_size=2, world=single_process())
    return ImageClassification(
        train=source, test=source, classes=logits.shape[1], mean=(0.0,) * 3, std=(1 / 255,) * 3,
        label_smoothing=label_smoothing, top=top, world=single_process(),
    )  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_arrive_normalised_in_the_memory_format_of_the_model(channels_last: bool):
    mean, std = (0.2, 0.5, 0.7), (0.1, 0.25, 0.4)
    data = torch.randint(256, (9, 3, 8, 10), dtype=torch.uint8), torch.zeros(9, dtype=torch.int64)
    task = task_from_tensors(
        train=data, test=data, classes=4, mean=mean, std=std, label_smoothing=0.0, batch_size=4, test_batch_size=6, seed=1,
        world=single_process(),
    )  # fmt: skip
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    memory_format.prepare(model, torch.device("cpu"), channels_last)
    task.prepare(model, [torch.ones(1, 3, 8, 10)])
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    seen = 0
    for (images, _), (pixels, _) in zip(task.batches(0, 0), task.train.batches(0, 0), strict=True):
        assert images.is_contiguous(memory_format=wanted)
        expected = (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)
        seen += len(images)
        task.evaluate(model)  # larger batches in the same buffer
    assert seen == 9
