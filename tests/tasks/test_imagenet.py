"""ImageNet's loader: real worker processes, damaged files, and epochs that can be resumed at any step."""

import os
import signal
import time
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.images.crops import Cut, random_box
from pufferfish_bench.tasks.images.image_folder import Pictures
from pufferfish_bench.tasks.images.loader import NAMED_FILES
from tests.support.pictures import (
    CLASSES,
    PER_CLASS,
    assert_same_batches,
    batches,
    cut_short,
    empty,
    folder,
    gone,
    huge,
    link_to_a_device,
    no_picture,
    order,
    pipe,
    task,
)


@pytest.mark.parametrize(
    "changes", [{"workers": 2}, {"workers": 1, "prefetch": 4}, {"cache": True}, {"cache": True, "workers": 2}]
)
def test_worker_processes_and_the_cache_change_no_pixel(root: Path, changes: dict):
    plain, other = task(root), task(root, **changes)
    for epoch in (0, 1):
        assert_same_batches(batches(other.train, epoch), batches(plain.train, epoch))
    assert_same_batches(batches(other.test), batches(plain.test))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_resumed_in_the_middle_gives_the_remaining_batches(root: Path, workers: int):
    source = task(root, workers=workers).train
    whole = batches(source, epoch=3)
    assert len(whole) == source.steps() == 6  # 21 pictures in batches of 4
    for start in range(7):
        assert_same_batches(batches(source, epoch=3, start=start), whole[start:])


def test_every_picture_is_seen_once_per_epoch_and_the_order_differs(root: Path):
    orders = [order(task(root, seed=seed).train, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(21)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    labels = torch.cat([labels for _, labels in batches(task(root).train)])
    assert labels.bincount().tolist() == [PER_CLASS] * 3


def test_labels_follow_the_alphabetical_order_of_the_folders_and_test_pictures_are_not_shuffled(root: Path):
    images, labels = (torch.cat(parts) for parts in zip(*batches(task(root).test), strict=True))
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.shape == (6, 3, 24, 24)
    assert images.dtype == torch.uint8


def plain_crop(path: str, size: int, drawn: list[float]) -> torch.Tensor:
    """Decode the whole picture, cut out the box, resize it in the usual memory format."""
    with Image.open(path) as picture:
        pixels = torch.from_numpy(numpy.array(picture.convert("RGB"))).permute(2, 0, 1)
    mirror, *rest = drawn
    left, top, width, height = random_box(pixels.shape[2], pixels.shape[1], (0.08, 1.0), rest)
    box = pixels[:, top : top + height, left : left + width].contiguous()
    square = F.interpolate(box[None], (size, size), mode="bilinear", antialias=True)[0]
    return square.flip(2) if mirror < 0.5 else square


def test_exact_batches_equal_a_plain_implementation_bit_for_bit(root: Path):
    source = task(root).train
    for (images, _), (_, indices, drawn) in zip(batches(source), source.requests(0, 0), strict=True):
        paths = [source.pictures.paths[index] for index in indices]
        expected = [plain_crop(path, 24, numbers) for path, numbers in zip(paths, drawn.tolist(), strict=True)]
        assert torch.equal(images, torch.stack(expected))


@pytest.mark.parametrize("changes", [{}, {"workers": 2}, {"cache": True}])
def test_batches_arrive_in_channels_last_memory_format(root: Path, changes: dict):
    made = task(root, **changes)
    for source in (made.train, made.test):
        formats = [images.is_contiguous(memory_format=torch.channels_last) for images, _ in source.batches(0, 0)]
        assert len(formats) == source.steps()
        assert all(formats)


def test_a_picture_is_cropped_differently_in_each_epoch_and_for_each_seed(root: Path):
    cuts = set()
    for seed in (1, 2):
        source = task(root, seed=seed, batch_size=21).train
        for epoch in (0, 1):
            images, _ = next(source.batches(epoch, 0))
            cuts.add(images[order(source, epoch).index(5)].numpy().tobytes())
    assert len(cuts) == 4


def test_a_new_epoch_ends_one_that_was_abandoned(root: Path):
    source, expected = task(root, workers=2).train, batches(task(root).train, epoch=1)
    abandoned = source.batches(0, 0)
    next(abandoned)
    assert_same_batches(batches(source, epoch=1), expected)
    assert list(abandoned) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_does_not_change_global_random_state(root: Path, workers: int):
    before = torch.get_rng_state()
    batches(task(root, workers=workers).train)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("harm", [cut_short, no_picture, empty, gone, pipe, link_to_a_device, folder, huge])
@pytest.mark.parametrize("changes", [{}, {"workers": 2}, {"cache": True}, {"decode": "scaled", "image_size": 12}])
def test_a_damaged_file_is_logged_once_and_left_out(root: Path, harm, changes: dict, caplog: pytest.LogCaptureFixture):
    whole = task(root)
    broken = root / "pictures" / "train" / CLASSES[1] / f"{CLASSES[1]}_3.JPEG"
    harm(broken)
    source = task(root, **changes).train
    for epoch in (0, 1):
        loaded, place = batches(source, epoch), order(whole.train, epoch).index(PER_CLASS + 3)
        assert [len(labels) for _, labels in loaded] == [4 - (place // 4 == step) for step in range(5)] + [1 - (place == 20)]
        kept = torch.cat([labels for _, labels in loaded])
        assert kept.bincount().tolist() == [PER_CLASS, PER_CLASS - 1, PER_CLASS]
    assert [str(broken) in record.message for record in caplog.records if record.levelname == "WARNING"] == [True]
    assert list(source.unreadable) == [str(broken)]


def test_a_link_to_a_picture_is_a_picture(root: Path):
    expected = batches(task(root).train)
    for path in sorted((root / "pictures" / "train").glob("*/*"))[::2]:
        path.rename(root / path.name)
        path.symlink_to(root / path.name)
    assert_same_batches(batches(task(root).train), expected)


def test_a_damaged_file_does_not_change_the_other_pictures_of_its_batch(root: Path):
    whole = batches(task(root).test)
    cut_short(root / "pictures" / "val" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG")
    part = batches(task(root, tolerated_unreadable=0.5).test)
    keep = [0, 2, 3, 4]
    assert torch.equal(part[0][0], whole[0][0][keep])
    assert part[0][1].tolist() == [0, 1, 1, 2]


def test_more_damaged_files_than_tolerated_are_an_error(root: Path):
    for number in range(2):
        cut_short(root / "pictures" / "train" / CLASSES[0] / f"{CLASSES[0]}_{number}.JPEG")
    batches(task(root, tolerated_unreadable=2 / 21).train)
    with pytest.raises(InputError, match=r"2 of 21 pictures.*tolerated_unreadable=0\.09.*_[01]\.JPEG"):
        batches(task(root, tolerated_unreadable=0.09).train)


def test_after_ten_names_damaged_files_are_only_counted(root: Path, caplog: pytest.LogCaptureFixture):
    for path in sorted((root / "pictures" / "train").glob("*/*"))[::2]:
        empty(path)
    source = task(root, tolerated_unreadable=0.9, batch_size=21).train
    batches(source)
    assert len(source.unreadable) == 11
    assert len([message for message in caplog.messages if ".JPEG" in message]) == NAMED_FILES
    assert "counted" in caplog.messages[-2]
    assert caplog.messages[-1].startswith("11 unreadable pictures")


def test_a_batch_of_damaged_files_only_is_an_error_in_training_and_skipped_in_evaluation(root: Path):
    for part in ("train", "val"):
        empty(root / "pictures" / part / CLASSES[0] / f"{CLASSES[0]}_0.JPEG")
    alone = task(root, batch_size=1, test_batch_size=1, tolerated_unreadable=0.5)
    with pytest.raises(InputError, match="no picture of a batch can be read"):
        batches(alone.train)
    assert [labels.tolist() for _, labels in batches(alone.test)] == [[0], [1], [1], [2], [2]]


def test_a_batch_is_not_overwritten_while_it_is_in_use(root: Path):
    expected = batches(task(root).train)
    for (images, _), (same, _) in zip(task(root, workers=2, prefetch=1).train.batches(0, 0), expected, strict=True):
        time.sleep(0.1)  # time for the workers to fill all the slots they may
        assert torch.equal(images, same)


def test_the_death_of_a_worker_is_an_input_error(root: Path):
    class Deadly(Pictures):
        def pixels(self, index: int, choose: object) -> tuple[numpy.ndarray, Cut]:
            os.kill(os.getpid(), signal.SIGKILL)

    source = task(root, workers=1).train
    source.pictures = Deadly(source.pictures.paths, source.pictures.labels)
    with pytest.raises(InputError, match=r"worker process.*died.*dataset\.loader\.workers"):
        batches(source)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crop_area": (0.0, 1.0)}, "crop_area"),
        ({"crop_area": (0.5, 0.4)}, "crop_area"),
        ({"image_size": 0}, "image_size=0"),
        ({"max_megapixels": 0}, "max_megapixels=0 must be above 0"),
        ({"max_megapixels": float("nan")}, "max_megapixels=nan"),
        ({"max_megapixels": 200}, "max_megapixels=200 .* at most 179, which is Pillow's limit"),
        ({"workers": -1}, "workers=-1"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_invalid_settings_are_refused(root: Path, changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        task(root, **changes)


def test_the_real_sample_has_all_its_pictures_including_grey_ones(data_root: Path):
    real = task(
        data_root, folder="imagenet_sample", classes=10, image_size=224, cache=True, batch_size=256, tolerated_unreadable=0.0
    )
    assert real.train.pictures.labels.tolist() == sorted([*range(10)] * 150)
    assert real.test.pictures.labels.tolist() == sorted([*range(10)] * 50)
    images = torch.cat([images for images, _ in batches(real.test)])
    grey = (images[:, 0] == images[:, 1]).flatten(1).all(1) & (images[:, 1] == images[:, 2]).flatten(1).all(1)
    assert 0 < int(grey.sum()) < 44
    # the constants are ImageNet's, not this sample's: near, not equal
    normalised = real.normalise(images)
    assert normalised.mean((0, 2, 3)).abs().max() < 0.3
    assert (normalised.std((0, 2, 3)) - 1).abs().max() < 0.3
