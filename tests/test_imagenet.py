"""ImageNet's folders: real files of every kind, broken ones too, real worker processes, epochs that can be entered anywhere."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image, ImageFilter

from pufferfish_bench import machine, run_directory
from pufferfish_bench.errors import InputError
from pufferfish_bench.records import EPOCHS, RUN, read_json, read_rows
from pufferfish_bench.tasks import folders, imagenet
from pufferfish_bench.tasks.folders import DecodedPictures, Pictures
from pufferfish_bench.world import alone
from tests.conftest import Command
from tests.test_commands import assert_same_run, interrupt
from tests.test_crops import as_tensor, assert_same_picture, photograph, transforms

CLASSES = ("n01440764", "n02102040", "n03000684")
PER_CLASS = 7

SETTINGS = {
    "folder": "pictures", "classes": 3, "image_size": 24, "crop_area": (0.08, 1.0), "label_smoothing": 0.1, "batch_size": 4,
    "test_batch_size": 5, "tolerated_unreadable": 0.1, "max_megapixels": 1, "cache": False, "workers": 0, "prefetch": 2,
    "seed": 1, "world": alone(),
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes of seven pictures to train on and two to test, each of its own colour, size and place."""
    for part, count in (("train", PER_CLASS), ("val", 2)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = photograph(30 + number, 40 - number, seed=100 * label + number)
                Image.fromarray(picture).save(folder / f"{name}_{number}.JPEG", quality=95)
    return tmp_path


def task(root: Path, **changes: object) -> imagenet.Images:
    return imagenet.imagenet(root=str(root), **SETTINGS | changes)


def batches(source: imagenet.Loader, epoch: int = 0, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels) for images, labels in source.batches(epoch, start)]


def order(source: imagenet.Loader, epoch: int) -> list[int]:
    return [index for _, indices, _ in source.requests(epoch, 0) for index in indices.tolist()]


def assert_same_batches(some: list, others: list) -> None:
    assert len(some) == len(others)
    for (images, labels), (other_images, other_labels) in zip(some, others, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)


@pytest.mark.parametrize(
    "changes", [{"workers": 2}, {"workers": 1, "prefetch": 4}, {"cache": True}, {"cache": True, "workers": 2}]
)
def test_worker_processes_and_the_cache_change_no_pixel(root: Path, changes: dict):
    plain, other = task(root), task(root, **changes)
    for epoch in (0, 1):
        assert_same_batches(batches(other.train, epoch), batches(plain.train, epoch))
    assert_same_batches(batches(other.test), batches(plain.test))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_entered_in_the_middle_gives_the_rest_of_it(root: Path, workers: int):
    source = task(root, workers=workers).train
    whole = batches(source, epoch=3)
    assert len(whole) == source.steps() == 6  # 21 pictures in batches of 4
    for start in range(7):
        assert_same_batches(batches(source, epoch=3, start=start), whole[start:])


def test_every_picture_is_seen_once_an_epoch_in_an_order_of_its_own(root: Path):
    orders = [order(task(root, seed=seed).train, epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(21)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    labels = torch.cat([labels for _, labels in batches(task(root).train)])
    assert labels.bincount().tolist() == [PER_CLASS] * 3


def test_labels_are_the_places_of_the_folders_in_the_alphabet_and_tests_are_in_order(root: Path):
    images, labels = (torch.cat(parts) for parts in zip(*batches(task(root).test), strict=True))
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.shape == (6, 3, 24, 24)
    assert images.dtype == torch.uint8
    assert images.is_contiguous()  # channels last would lead the whole net that way


def test_a_picture_is_cut_differently_in_each_epoch_and_for_each_seed(root: Path):
    cuts = set()
    for seed in (1, 2):
        source = task(root, seed=seed, batch_size=21).train
        for epoch in (0, 1):
            images, _ = next(source.batches(epoch, 0))
            cuts.add(images[order(source, epoch).index(5)].numpy().tobytes())
    assert len(cuts) == 4


def test_a_new_epoch_ends_one_that_was_left_in_the_middle(root: Path):
    source, expected = task(root, workers=2).train, batches(task(root).train, epoch=1)
    abandoned = source.batches(0, 0)
    next(abandoned)
    assert_same_batches(batches(source, epoch=1), expected)
    assert list(abandoned) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_touches_no_global_randomness(root: Path, workers: int):
    before = torch.get_rng_state()
    batches(task(root, workers=workers).train)
    assert torch.equal(torch.get_rng_state(), before)


def grey(picture: Image.Image, path: Path) -> None:
    picture.convert("L").save(path, "JPEG", quality=98)


def cmyk(picture: Image.Image, path: Path) -> None:
    picture.convert("CMYK").save(path, "JPEG", quality=98, subsampling=0)


def png_with_alpha(picture: Image.Image, path: Path) -> None:
    picture.convert("RGBA").save(path, "PNG")  # ImageNet has one PNG that is called JPEG


def palette(picture: Image.Image, path: Path) -> None:
    picture.quantize(256).save(path, "PNG")


@pytest.mark.parametrize("save", [grey, cmyk, png_with_alpha, palette])
def test_every_kind_of_picture_comes_as_rgb(tmp_path: Path, save: Callable[[Image.Image, Path], None]):
    original = Image.fromarray(photograph(40, 30, seed=3)).filter(
        ImageFilter.GaussianBlur(2)
    )  # what compression and palettes hardly change
    path = tmp_path / "picture.JPEG"
    save(original, path)
    pixels = folders.decoded(str(path))
    expected = numpy.asarray(original.convert("L").convert("RGB") if save is grey else original)
    assert pixels.shape == expected.shape == (30, 40, 3)
    assert numpy.abs(pixels.astype(int) - expected).mean() < 10  # grey levels: a mixed-up channel or an inversion is far more


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_picture(path: Path) -> None:
    path.write_text("<html>404 Not Found</html>")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # whoever opens it waits until somebody writes


def link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")  # never ends


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path) -> None:
    Image.new("L", (1_001, 1_000)).save(path)


@pytest.mark.parametrize("harm", [cut_short, no_picture, empty, gone, pipe, link_to_a_device, folder, huge])
@pytest.mark.parametrize("changes", [{}, {"workers": 2}, {"cache": True}])
def test_a_broken_file_is_named_once_and_left_out(root: Path, harm, changes: dict, caplog: pytest.LogCaptureFixture):
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


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (pipe, "it is a named pipe, not a regular file"),
        (link_to_a_device, "it is a device, not a regular file"),
        (folder, "it is a folder, not a regular file"),
        (huge, r"it has 1001x1000 pixels, more than dataset\.max_megapixels=1"),
    ],
)
def test_why_a_file_is_left_out_is_told(tmp_path: Path, harm: Callable[[Path], None], reason: str):
    path = tmp_path / "picture.png"
    path.touch()
    harm(path)
    with pytest.raises(folders.Unreadable, match=reason):
        folders.decoded(str(path), max_megapixels=1)


def test_the_bound_of_a_pictures_size_is_checked_before_its_pixels_are_read(tmp_path: Path):
    path = tmp_path / "picture.png"
    Image.fromarray(photograph(40, 25)).save(path)
    assert folders.decoded(str(path), max_megapixels=0.001).shape == (25, 40, 3)
    path.write_bytes(path.read_bytes()[:100])  # its header says how large it is, and its pixels are gone
    with pytest.raises(folders.Unreadable, match=r"more than dataset\.max_megapixels=0\.000999"):
        folders.decoded(str(path), max_megapixels=0.000999)


def test_the_other_pictures_of_a_batch_stay_as_they_are(root: Path):
    whole = batches(task(root).test)
    cut_short(root / "pictures" / "val" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG")
    part = batches(task(root, tolerated_unreadable=0.5).test)
    keep = [0, 2, 3, 4]
    assert torch.equal(part[0][0], whole[0][0][keep])
    assert part[0][1].tolist() == [0, 1, 1, 2]


def test_a_file_that_can_be_read_in_the_end_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "picture.png"
    Image.fromarray(photograph(8, 8)).save(path)
    stale = OSError(errno.ESTALE, "stale handle")
    failures, opened = [stale] * len(folders.PAUSES), Image.open

    def stumble(*arguments: object) -> Image.Image:
        if failures:
            raise failures.pop()
        return opened(*arguments)

    monkeypatch.setattr(Image, "open", stumble)
    assert folders.decoded(str(path)).shape == (8, 8, 3)
    failures += [stale] * (len(folders.PAUSES) + 1)
    with pytest.raises(folders.Unreadable, match="stale handle"):
        folders.decoded(str(path))
    for own in (MemoryError(), OSError(errno.EMFILE, "too many open files")):  # no fault of the picture
        failures.append(own)
        with pytest.raises(type(own)):
            folders.decoded(str(path))


def test_too_many_broken_files_are_an_error_and_just_few_enough_are_not(root: Path):
    for number in range(2):
        cut_short(root / "pictures" / "train" / CLASSES[0] / f"{CLASSES[0]}_{number}.JPEG")
    batches(task(root, tolerated_unreadable=2 / 21).train)
    with pytest.raises(InputError, match=r"2 of 21 pictures.*tolerated_unreadable=0\.09.*_[01]\.JPEG"):
        batches(task(root, tolerated_unreadable=0.09).train)


def test_after_ten_names_broken_files_are_counted(root: Path, caplog: pytest.LogCaptureFixture):
    for path in sorted((root / "pictures" / "train").glob("*/*"))[::2]:
        empty(path)
    source = task(root, tolerated_unreadable=0.9, batch_size=21).train
    batches(source)
    assert len(source.unreadable) == 11
    assert len([message for message in caplog.messages if ".JPEG" in message]) == imagenet.NAMED
    assert "counted" in caplog.messages[-2]
    assert caplog.messages[-1].startswith("11 pictures could not be read")


def test_a_batch_of_broken_files_alone_is_an_error_in_training_and_passed_over_in_a_test(root: Path):
    for part in ("train", "val"):
        empty(root / "pictures" / part / CLASSES[0] / f"{CLASSES[0]}_0.JPEG")
    alone = task(root, batch_size=1, test_batch_size=1, tolerated_unreadable=0.5)
    with pytest.raises(InputError, match="not one picture"):
        batches(alone.train)
    assert [labels.tolist() for _, labels in batches(alone.test)] == [[0], [1], [1], [2], [2]]


def test_a_batch_is_not_written_over_while_it_is_looked_at(root: Path):
    expected = batches(task(root).train)
    for (images, _), (same, _) in zip(task(root, workers=2, prefetch=1).train.batches(0, 0), expected, strict=True):
        time.sleep(0.1)  # the workers are done with all that they may do
        assert torch.equal(images, same)


def test_a_worker_that_dies_is_told_in_a_sentence(root: Path):
    class Deadly(Pictures):
        def pixels(self, index: int) -> numpy.ndarray:
            os.kill(os.getpid(), signal.SIGKILL)

    source = task(root, workers=1).train
    source.pictures = Deadly(source.pictures.paths, source.pictures.labels)
    with pytest.raises(InputError, match=r"worker process.*died.*dataset\.workers"):
        batches(source)


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_class_is_an_error_that_names_it(root: Path, part: str):
    folder = root / "pictures" / part / CLASSES[1]
    for file in folder.iterdir():
        file.unlink()
    (folder / "notes.txt").write_text("not a picture")
    (folder / "._n01440764_1.JPEG").write_bytes(b"what a Mac leaves behind")
    with pytest.raises(InputError, match=f"{part}/{CLASSES[1]} has no pictures"):
        task(root)


def test_any_classes_will_do_but_both_parts_must_have_them_and_their_number_must_be_told(root: Path):
    with pytest.raises(InputError, match=r"dataset\.classes=1000, but .*train has 3; use dataset\.classes=3"):
        task(root, classes=1000)
    shutil.rmtree(root / "pictures" / "train" / CLASSES[0])
    with pytest.raises(InputError, match=f"different classes: {CLASSES[0]}"):
        task(root)
    shutil.rmtree(root / "pictures" / "val" / CLASSES[0])
    assert torch.cat([labels for _, labels in batches(task(root, classes=2).train)]).bincount().tolist() == [PER_CLASS] * 2


def test_missing_folders_are_named_with_the_way_out(root: Path, tmp_path: Path):
    with pytest.raises(InputError) as error:
        task(tmp_path / "elsewhere")
    for words in ("elsewhere/pictures/train", "data_root=", "dataset.folder=", "dataset=synthetic_images"):
        assert words in str(error.value)
    for folder in (root / "pictures" / "val").iterdir():  # as ImageNet's own archive unpacks: files, no folders
        shutil.rmtree(folder)
    (root / "pictures" / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    with pytest.raises(InputError, match="val has no folders"):
        task(root)


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
def test_settings_that_make_no_sense_are_refused(root: Path, changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        task(root, **changes)


def test_a_cache_that_would_not_fit_is_refused_before_it_is_filled(root: Path, monkeypatch: pytest.MonkeyPatch):
    needed = sum(folders.decoded(path).size for paths, _ in folders.parts(root / "pictures", 3) for path in paths)
    for free, fits in ((needed / folders.MEMORY_SHARE * 1.1, True), (needed / folders.MEMORY_SHARE * 0.9, False)):
        monkeypatch.setattr(machine, "free_memory", lambda free=free: int(free))
        if fits:
            task(root, cache=True)
        else:
            with pytest.raises(InputError, match=r"27 pictures.*dataset\.cache=false"):
                task(root, cache=True)


def test_the_cache_holds_what_decoding_gives_and_reads_no_file_again(root: Path):
    paths, labels = folders.parts(root / "pictures", 3)[0]
    kept, plain = DecodedPictures(paths, labels), Pictures(paths, labels)
    expected = [plain.pixels(index) for index in range(len(plain))]
    shutil.rmtree(root / "pictures")
    assert all(numpy.array_equal(kept.pixels(index), pixels) for index, pixels in enumerate(expected))


def test_the_real_sample_has_its_pictures_and_its_grey_ones(data_root: Path):
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


def test_full_size_photographs_are_cut_as_torchvision_cuts_them(data_root: Path):
    reference = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    files = sorted((data_root / "imagenet_fullsize").rglob("*.JPEG"))
    assert len(files) == 20
    for file in files:
        with Image.open(file) as picture:
            expected = as_tensor(reference(picture.convert("RGB")))
        assert_same_picture(imagenet.CentreCrop(224)(folders.decoded(str(file)), ()), expected)


def test_free_memory_is_some_and_no_more_than_there_is():
    assert 0 < machine.free_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("limit", "used", "files"),
    [
        ("3000", "1000", ("memory.max", "memory.current")),
        ("3000", "1000", ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")),
        ("max", "1000", ("memory.max", "memory.current")),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: str, used: str, files: tuple[str, str]):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    for name, text in zip(files, (limit, used), strict=True):
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert machine.free_memory(tmp_path) == (4096 if limit == "max" else 2000)


RUN_SETTINGS = (
    "model=resnet50", "method=pufferfish", "profile=cpu", "model.width=0.05", "epochs=4", "warmup_epochs=1", "batch_size=2",
    "dataset.folder=pictures", "dataset.classes=3", "dataset.image_size=40",
)  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_with_workers_stopped_in_the_middle_goes_on_at_once_to_the_same_end(
    root: Path, invoke: Command, arguments, tmp_path: Path, number: int
):
    settings = (*RUN_SETTINGS, f"data_root={root}")
    assert invoke(*settings, "dataset.cache=true", "dataset.workers=0", "run_dir=whole").returncode == 0
    workers = ("dataset.cache=false", "dataset.workers=2", "run_dir=stopped")
    # Ctrl-C and schedulers reach the worker processes too; a kill does not, and they must not hold the directory when it has come
    stopped = interrupt(
        arguments(*settings, *workers), tmp_path, number, lambda: len(read_rows(tmp_path / "stopped" / EPOCHS)) >= 2,
        to_all=number != signal.SIGKILL,
    )  # fmt: skip
    assert stopped.returncode == (-number if number == signal.SIGKILL else 128 + number), stopped.stderr
    assert "Traceback" not in stopped.stderr
    finished = invoke(*settings, *workers)
    assert finished.returncode == 0, finished.stderr
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    assert read_json(tmp_path / "stopped" / RUN)["data"]["workers"] == 2


def test_a_broken_picture_is_told_on_the_terminal_and_the_run_goes_on(root: Path, invoke: Command):
    broken = root / "pictures" / "train" / CLASSES[1] / f"{CLASSES[1]}_3.JPEG"
    cut_short(broken)
    settings = (*RUN_SETTINGS, f"data_root={root}", "method=vanilla", "epochs=1")
    finished = invoke(*settings, "dataset.tolerated_unreadable=0.1")
    assert finished.returncode == 0
    assert f"warning: {broken} cannot be read and is left out: " in finished.stderr
    refused = invoke(*settings, "run_dir=anew")
    assert refused.returncode == 2
    assert "1 of 21 pictures cannot be read" in refused.stderr


def test_workers_and_the_cache_are_no_part_of_a_runs_identity_and_the_size_of_pictures_is(root: Path, invoke: Command):
    settings = (*RUN_SETTINGS, f"data_root={root}", "method=vanilla", "epochs=1")
    conditions = ("dataset.workers=1", "dataset.cache=false", "dataset.prefetch=9", "dataset.tolerated_unreadable=0.5")
    conditions += ("dataset.max_megapixels=50",)
    ways = ((), *((condition,) for condition in conditions), ("dataset.image_size=41",))
    headers = [invoke(*settings, *way).stdout.splitlines()[0] for way in ways]
    assert len(set(headers[:-1])) == 1
    assert headers[-1] != headers[0]


def test_a_worker_that_outlives_its_run_does_not_hold_the_directory(tmp_path: Path):
    program = (
        "import os, sys, time\nfrom pathlib import Path\nfrom pufferfish_bench.run_directory import alone\n"
        "with alone(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        os.close(1)\n        time.sleep(60)\n"
        "    print(child, flush=True)\n    os.kill(os.getpid(), 9)"
    )
    finished = subprocess.run([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert finished.returncode == -signal.SIGKILL
    try:
        with run_directory.alone(tmp_path):
            pass
    finally:
        os.kill(int(finished.stdout), signal.SIGKILL)
