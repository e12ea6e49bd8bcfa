"""Folders of pictures: files of every kind, damaged ones too, and what is refused before training."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageFilter

from pufferfish_bench.base.errors import InputError
from pufferfish_bench.models.torchvision_import import torchvision
from pufferfish_bench.tasks.images import image_folder
from pufferfish_bench.tasks.images.crops import CentreCrop
from pufferfish_bench.tasks.images.image_folder import CachedPictures, Pictures
from pufferfish_bench.training import memory
from tests.support.pictures import (
    CLASSES,
    PER_CLASS,
    as_tensor,
    assert_same_picture,
    batches,
    folder,
    huge,
    link_to_a_device,
    photograph,
    pipe,
    task,
)


def grey(picture: Image.Image, path: Path) -> None:
    picture.convert("L").save(path, "JPEG", quality=98)


def cmyk(picture: Image.Image, path: Path) -> None:
    picture.convert("CMYK").save(path, "JPEG", quality=98, subsampling=0)


def png_with_alpha(picture: Image.Image, path: Path) -> None:
    picture.convert("RGBA").save(path, "PNG")  # ImageNet has one PNG that is called JPEG


def palette(picture: Image.Image, path: Path) -> None:
    picture.quantize(256).save(path, "PNG")


@pytest.mark.parametrize("save", [grey, cmyk, png_with_alpha, palette])
def test_every_colour_mode_is_converted_to_rgb(tmp_path: Path, save: Callable[[Image.Image, Path], None]):
    original = Image.fromarray(photograph(40, 30, seed=3)).filter(
        ImageFilter.GaussianBlur(2)
    )  # compression and palettes hardly change it
    path = tmp_path / "picture.JPEG"
    save(original, path)
    pixels, _ = image_folder.decode(str(path))
    expected = numpy.asarray(original.convert("L").convert("RGB") if save is grey else original)
    assert pixels.shape == expected.shape == (30, 40, 3)
    assert (
        numpy.abs(pixels.astype(int) - expected).mean() < 10
    )  # grey levels; swapped channels or an inversion would give far more


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (pipe, "it is a named pipe, not a regular file"),
        (link_to_a_device, "it is a device, not a regular file"),
        (folder, "it is a folder, not a regular file"),
        (huge, r"it has 1001x1000 pixels, more than dataset\.loader\.max_megapixels=1"),
    ],
)
def test_the_reason_why_a_file_is_unreadable_is_given(tmp_path: Path, harm: Callable[[Path], None], reason: str):
    path = tmp_path / "picture.png"
    path.touch()
    harm(path)
    with pytest.raises(image_folder.Unreadable, match=reason):
        image_folder.decode(str(path), max_megapixels=1)


def test_the_size_of_a_picture_is_checked_before_its_pixels_are_decoded(tmp_path: Path):
    path = tmp_path / "picture.png"
    Image.fromarray(photograph(40, 25)).save(path)
    assert image_folder.decode(str(path), max_megapixels=0.001)[0].shape == (25, 40, 3)
    path.write_bytes(path.read_bytes()[:100])  # the header with the size is intact, the pixels are gone
    with pytest.raises(image_folder.Unreadable, match=r"more than dataset\.loader\.max_megapixels=0\.000999"):
        image_folder.decode(str(path), max_megapixels=0.000999)


def test_reading_is_retried_after_an_error_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "picture.png"
    Image.fromarray(photograph(8, 8)).save(path)
    stale = OSError(errno.ESTALE, "stale handle")
    failures, opened = [stale] * len(image_folder.PAUSES), Image.open

    def stumble(*arguments: object) -> Image.Image:
        if failures:
            raise failures.pop()
        return opened(*arguments)

    monkeypatch.setattr(Image, "open", stumble)
    assert image_folder.decode(str(path))[0].shape == (8, 8, 3)
    failures += [stale] * (len(image_folder.PAUSES) + 1)
    with pytest.raises(image_folder.Unreadable, match="stale handle"):
        image_folder.decode(str(path))
    for own in (MemoryError(), OSError(errno.EMFILE, "too many open files")):  # not the picture's fault
        failures.append(own)
        with pytest.raises(type(own)):
            image_folder.decode(str(path))


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_class_is_an_error_that_names_its_folder(root: Path, part: str):
    folder = root / "pictures" / part / CLASSES[1]
    for file in folder.iterdir():
        file.unlink()
    (folder / "notes.txt").write_text("not a picture")
    (folder / "._n01440764_1.JPEG").write_bytes(b"what a Mac leaves behind")
    with pytest.raises(InputError, match=f"{part}/{CLASSES[1]} has no pictures"):
        task(root)


def test_any_classes_are_accepted_if_train_and_val_have_the_same_and_their_number_is_set(root: Path):
    with pytest.raises(InputError, match=r"dataset\.classes=1000, but .*train has 3 folders; use dataset\.classes=3"):
        task(root, classes=1000)
    shutil.rmtree(root / "pictures" / "train" / CLASSES[0])
    with pytest.raises(InputError, match=f"only one of them has {CLASSES[0]}"):
        task(root)
    shutil.rmtree(root / "pictures" / "val" / CLASSES[0])
    assert torch.cat([labels for _, labels in batches(task(root, classes=2).train)]).bincount().tolist() == [PER_CLASS] * 2


def test_missing_folders_are_named_with_what_to_do(root: Path, tmp_path: Path):
    with pytest.raises(InputError) as error:
        task(tmp_path / "elsewhere")
    for words in ("elsewhere/pictures/train", "data_root=", "dataset.folder=", "dataset=synthetic_images"):
        assert words in str(error.value)
    for of_class in (root / "pictures" / "val").iterdir():  # ImageNet's own archive has files here, no folders
        shutil.rmtree(of_class)
    (root / "pictures" / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    with pytest.raises(InputError, match="val has no folders"):
        task(root)


def test_a_cache_larger_than_free_memory_is_refused_before_decoding(root: Path, monkeypatch: pytest.MonkeyPatch):
    parts = image_folder.train_and_val(root / "pictures", 3)
    needed = sum(image_folder.decode(path)[0].size for paths, _ in parts for path in paths)
    for free, fits in ((needed / image_folder.MEMORY_SHARE * 1.1, True), (needed / image_folder.MEMORY_SHARE * 0.9, False)):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: int(free))
        if fits:
            task(root, cache=True)
        else:
            with pytest.raises(InputError, match=r"27 pictures.*dataset\.loader\.cache=false"):
                task(root, cache=True)


def test_the_cache_holds_the_decoded_pictures_and_reads_no_file_again(root: Path):
    paths, labels = image_folder.train_and_val(root / "pictures", 3)[0]
    kept, plain = CachedPictures(paths, labels), Pictures(paths, labels)
    expected = [plain.pixels(index, image_folder.whole)[0] for index in range(len(plain))]
    shutil.rmtree(root / "pictures")
    assert all(numpy.array_equal(kept.pixels(index, image_folder.whole)[0], pixels) for index, pixels in enumerate(expected))


def test_full_size_photographs_are_cropped_as_by_torchvision(data_root: Path):
    reference = torchvision.transforms.Compose([torchvision.transforms.Resize(256), torchvision.transforms.CenterCrop(224)])
    files = sorted((data_root / "imagenet_fullsize").rglob("*.JPEG"))
    assert len(files) == 20
    for file in files:
        with Image.open(file) as picture:
            expected = as_tensor(reference(picture.convert("RGB")))
        assert_same_picture(CentreCrop(224)(image_folder.decode(str(file))[0], ()), expected)
