"""Pictures in one folder per class: listing the files, decoding them, and caching the decoded pictures in memory."""

import errno
import logging
import math
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy
from PIL import Image
from rich.console import Console
from rich.progress import track

from pufferfish_bench.base import cores
from pufferfish_bench.base.errors import InputError
from pufferfish_bench.tasks.images import crops
from pufferfish_bench.tasks.images.class_folders import class_names, is_picture, training_folder
from pufferfish_bench.tasks.images.crops import Box, Cut
from pufferfish_bench.training import memory

PAUSES = (0.1, 0.5)  # seconds before a file is read again, for passing errors of network file systems
PROCESS_ERRORS = {errno.EMFILE, errno.ENFILE}  # too many open files: not a problem of this file
FILE_TYPES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
SAMPLED_FILES = 100  # files whose size is read to estimate the memory for all of them
SPLIT_SEED = 1 << 42  # of the split into training and validation, the same in all runs
MEMORY_SHARE = 0.8  # of the free memory, for decoded pictures

log = logging.getLogger(__name__)

warnings.filterwarnings("ignore", module="PIL")  # unusual metadata in a few files does not matter


Choose = Callable[[int, int], Cut]  # what to take from a picture of this width and height


class Unreadable(Exception):
    """The file is not a picture, is damaged, or is too large."""


class Pictures:
    """Labelled pictures on disk, decoded on access. A picture of more than `max_megapixels` counts as unreadable.

    If `scaled`, JPEG files are decoded at 1/2, 1/4 or 1/8 of their size where that leaves enough pixels.
    """

    def __init__(self, paths: Sequence[str], labels: Sequence[int], max_megapixels: float = math.inf, scaled: bool = False):
        self.paths = paths
        self.max_megapixels = max_megapixels
        self.scaled = scaled
        self.labels = numpy.asarray(labels, dtype=numpy.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def pixels(self, index: int, choose: Choose) -> tuple[numpy.ndarray, Cut]:
        """The pixels in the box of a cut, as uint8 (height, width, 3) whatever the file's colour mode, and the cut.

        `choose` gets the picture's width and height. Raises Unreadable.
        """
        return decode(self.paths[index], choose, self.max_megapixels, self.scaled)


class CachedPictures(Pictures):
    """Pictures decoded once, at full size, and kept in memory."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], max_megapixels: float = math.inf):
        super().__init__(paths, labels, max_megapixels)
        folder = os.path.commonpath(paths)
        log.info(f"decoding {len(paths):,} pictures in {folder}")
        with ThreadPoolExecutor(cores.cores()) as pool:
            console = Console(stderr=True)
            quiet = not sys.stderr.isatty()
            decoding = pool.map(partial(decode_or_reason, max_megapixels=max_megapixels), paths)
            self.cached = list(track(decoding, f"decoding {folder}", len(paths), console=console, disable=quiet, transient=True))

    def pixels(self, index: int, choose: Choose) -> tuple[numpy.ndarray, Cut]:
        cached = self.cached[index]
        if isinstance(cached, str):  # the reason why it is unreadable
            raise Unreadable(cached)
        height, width, _ = cached.shape
        cut = choose(width, height)
        return crops.inside(cached, cut.box), cut


def whole(width: int, height: int) -> Cut:
    return Cut((0, 0, width, height), height, width)


def open_picture(path: str, max_megapixels: float = math.inf) -> Image.Image:
    """A picture of which only the header has been read; Unreadable if it is too large or not a regular file."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):  # reading a pipe may block forever, and a device may never end
        raise Unreadable(f"it is {FILE_TYPES.get(stat.S_IFMT(mode), 'something else')}, not a regular file")
    picture = Image.open(path)
    width, height = picture.size
    if width * height > max_megapixels * 1e6:
        picture.close()
        raise Unreadable(f"it has {width}x{height} pixels, more than dataset.loader.max_megapixels={max_megapixels:g}")
    return picture


def decode(
    path: str, choose: Choose = whole, max_megapixels: float = math.inf, scaled: bool = False
) -> tuple[numpy.ndarray, Cut]:
    """The RGB pixels in the box of a cut of a file, and the cut, which `choose` makes from the width and height."""
    for pause in (*PAUSES, None):
        try:
            with open_picture(path, max_megapixels) as picture:
                cut = choose(*picture.size)
                return box_pixels(picture, cut.box, crops.largest_reduction(cut) if scaled else 1), cut
        except Unreadable:
            raise
        except Exception as error:  # Pillow's parsers raise exceptions of many types on damaged files
            number = getattr(error, "errno", None)
            if isinstance(error, MemoryError) or number in PROCESS_ERRORS:
                raise
            if number is None or pause is None:  # not an error of the file system, or one that persists
                raise Unreadable(str(error)) from None
            time.sleep(pause)


def box_pixels(picture: Image.Image, box: Box, reduction: int) -> numpy.ndarray:
    """The RGB pixels in a box, converted from grey, CMYK or palette colours if necessary.

    A JPEG is decoded at 1/`reduction` of its size; other formats can only be decoded at full size.
    """
    full = picture.size
    if reduction > 1:
        picture.draft(None, (full[0] // reduction, full[1] // reduction))
    left, top, width, height = crops.reduced(box, reduction if picture.size != full else 1)
    part = picture.crop((left, top, left + width, top + height))  # copying and converting only the box saves time
    return numpy.array(part if part.mode == "RGB" else part.convert("RGB"))


def decode_or_reason(path: str, max_megapixels: float) -> numpy.ndarray | str:
    """The pixels of the whole picture, or the reason why they cannot be read."""
    try:
        return decode(path, max_megapixels=max_megapixels)[0]
    except Unreadable as error:
        return str(error)


def check_cache_fits(paths: Sequence[str], max_megapixels: float) -> None:
    """Refuse to cache pictures that need more than the free memory, estimated from the size of some of them."""
    areas = []
    for path in paths[:: max(1, len(paths) // SAMPLED_FILES)]:
        try:
            with open_picture(path, max_megapixels) as picture:
                areas.append(picture.width * picture.height)
        except Exception:  # reported when it is decoded
            continue
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # each process caches all pictures
    needed = 3 * len(paths) * sum(areas) / max(1, len(areas)) * processes
    free = memory.free_memory()
    if needed > MEMORY_SHARE * free:
        raise InputError(
            f"dataset.loader.cache=true: {len(paths):,} pictures in {os.path.commonpath(paths)} need about "
            f"{needed / 2**30:.1f} GiB decoded, but only {free / 2**30:.1f} GiB are free; use dataset.loader.cache=false"
        )


def train_and_val(folder: Path, classes: int, validation_share: float | None = None) -> list[tuple[list[str], list[int]]]:
    """The paths and labels of all pictures in train/ and in val/. Both must have the same `classes` classes.

    With `validation_share`, a folder without train/ may have the classes themselves: this share of each is for validation.
    """
    if validation_share is not None and training_folder(folder) == folder:
        names = checked_names(folder, classes)
        return split_by_class(folder, names, validation_share)
    train, val = folder / "train", folder / "val"
    missing = [str(part) for part in (train, val) if not part.is_dir()]
    if missing and validation_share is not None:
        raise InputError(
            f"there is no folder {val}, but there is {train}: add it, or hold out pictures of train/ for validation with "
            f"dataset.folder={train}"
        )
    if missing:
        raise InputError(
            f"there is no folder {' and no folder '.join(missing)}: pictures are expected in {folder}/{{train,val}}/<class>/. "
            "Set the location with data_root=DIR or PUFFERFISH_DATA, and dataset.folder=NAME below it (the licence of "
            "ImageNet does not allow an automatic download), or use synthetic data: dataset=synthetic_images"
        )
    names, others = class_names(train), class_names(val)
    if names != others:
        unmatched = sorted(set(names) ^ set(others))
        examples = ", ".join(unmatched[:5]) + (" ..." if len(unmatched) > 5 else "")
        raise InputError(f"{train} and {val} must have the same classes, but only one of them has {examples}")
    checked_names(train, classes)
    return [list_pictures(part, names) for part in (train, val)]


def checked_names(folder: Path, classes: int) -> list[str]:
    """The names of the classes in a folder; an InputError unless there are `classes`."""
    names = class_names(folder)
    if len(names) != classes:
        raise InputError(f"dataset.classes={classes}, but {folder} has {len(names)} folders; use dataset.classes={len(names)}")
    return names


def split_by_class(folder: Path, names: Sequence[str], share: float) -> list[tuple[list[str], list[int]]]:
    """The pictures of each class, drawn into training and validation: at least one of each in both. The same in all runs."""
    if not 0 < share < 1:
        raise InputError(f"dataset.validation_share={share} must be above 0 and below 1")
    parts: list[tuple[list[str], list[int]]] = [([], []), ([], [])]
    paths, labels = list_pictures(folder, names)
    for label, name in enumerate(names):
        own = [path for path, its in zip(paths, labels, strict=True) if its == label]
        if len(own) < 2:
            raise InputError(f"{folder / name} has one picture: a class needs at least two, one of them for validation")
        held_out = min(len(own) - 1, max(1, round(share * len(own))))
        order = numpy.random.default_rng((SPLIT_SEED, label)).permutation(len(own))
        for (chosen, chosen_labels), numbers in zip(parts, (order[held_out:], order[:held_out]), strict=True):
            chosen += [own[number] for number in sorted(numbers)]
            chosen_labels += [label] * len(numbers)
    return parts


def list_pictures(folder: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """The paths of all pictures in the folders of the classes, sorted within each class, and their labels."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(entry.path for entry in os.scandir(folder / name) if is_picture(entry.name))
        if not found:
            raise InputError(f"{folder / name} has no pictures (folders inside it are not read): add some, or remove the folder")
        paths += found
        labels += [label] * len(found)
    return paths, labels
