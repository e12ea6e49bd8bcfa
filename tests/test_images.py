"""Images in memory: the vectorised augmentation against a plain one, and epochs that can be entered anywhere."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pufferfish_bench.errors import InputError
from pufferfish_bench.tasks.images import PADDING, Images, augment
from tests.conftest import TinyNet, tiny_task


def augment_one(image: Tensor, row: int, column: int, flip: bool) -> Tensor:
    """Pad by reflection, crop, flip: one image at a time."""
    height, width = image.shape[1:]
    padded = F.pad(image[None].float(), [PADDING] * 4, mode="reflect")[0].byte()
    crop = padded[:, row : row + height, column : column + width]
    return crop.flip(2) if flip else crop


@given(
    st.lists(st.tuples(st.integers(0, 2 * PADDING), st.integers(0, 2 * PADDING), st.booleans()), min_size=1, max_size=6),
    st.integers(5, 9),
    st.integers(5, 9),
)
def test_the_vectorised_augmentation_is_pad_crop_flip_of_each_image(moves: list, height: int, width: int):
    images = torch.randint(256, (len(moves), 3, height, width), dtype=torch.uint8)
    rows, columns, flips = (torch.tensor(move) for move in zip(*moves, strict=True))
    expected = [augment_one(image, *move) for image, move in zip(images, moves, strict=True)]
    assert torch.equal(augment(images, rows, columns, flips), torch.stack(expected))


@given(start=st.integers(0, 7), epoch=st.integers(0, 300))
def test_an_epoch_entered_in_the_middle_gives_the_rest_of_it(start: int, epoch: int):
    task = tiny_task()
    whole = list(task.batches(epoch, 0))
    assert len(whole) == task.steps(epoch)
    rest = list(task.batches(epoch, start))
    assert len(rest) == len(whole) - start
    for (images, labels), (same_images, same_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)


def test_every_image_is_seen_once_an_epoch_and_in_another_order_each_epoch_and_seed():
    def order(seed: int, epoch: int) -> list[int]:
        task = tiny_task(seed=seed)
        task.train_labels = torch.arange(50)  # each image wears its number
        return torch.cat([labels for _, labels in task.batches(epoch, 0)]).tolist()

    orders = [order(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(numbers) == list(range(50)) for numbers in orders)
    assert len({tuple(numbers) for numbers in orders}) == 4


def test_every_crop_position_and_both_mirror_images_occur():
    task = tiny_task(images=4000, batch_size=4000)
    task.train_images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(4000, 3, 16, 16)
    images, _ = next(task.batches(0, 0))
    assert len(images.flatten(1).unique(dim=0)) == 2 * (2 * PADDING + 1) ** 2


def test_batches_touch_no_global_randomness():
    before = torch.get_rng_state()
    list(tiny_task().batches(0, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_normalising_is_pixel_over_255_minus_mean_over_std():
    task = tiny_task()
    pixels = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(task.normalise(pixels), (pixels / 255 - 0.5) / 0.25)


def test_evaluation_is_the_mean_over_all_images_whatever_the_batch_size():
    task, model = tiny_task(), TinyNet().eval()
    with torch.no_grad():
        logits = model(task.normalise(task.test_images))
        figures = task.evaluate(model)
    assert figures["test_loss"] == pytest.approx(float(F.cross_entropy(logits, task.test_labels)), rel=1e-5)
    assert figures["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == task.test_labels).float().mean()))


@pytest.mark.parametrize(("changes", "words"), [({"classes": 3}, "classes=3"), ({"batch_size": 0}, "batch_size=0")])
def test_settings_that_do_not_fit_the_data_are_refused(changes: dict, words: str):
    pixels, labels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4)
    fitting = {"classes": 4, "batch_size": 2, "test_batch_size": 2, "mean": (0.0,) * 3, "std": (1.0,) * 3, "seed": 1}
    with pytest.raises(InputError, match=words):
        Images(train=(pixels, labels), test=(pixels, labels), device=torch.device("cpu"), **fitting | changes)
